"""Studies: many runs that answer one question. `sweep.py` runs grids; `reproduce/` makes the papers' tables.

This package may import pictures, measures, models, experiment and everything below them; only `cli` is above it.
"""
