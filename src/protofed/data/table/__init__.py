"""Tables: CSV, Parquet and Feather files, and DataFrames, whose rows are the examples of clients.

`files.py` reads a file, `columns.py` finds the kind of each column, `recipe.py` makes numbers of them, and
`client_tables.py` has the rows of each client. This package may import only what `protofed.data` may.
"""
