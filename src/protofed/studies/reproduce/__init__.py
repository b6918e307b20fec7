"""The tables and figures of the papers.

`papers.py` lists all of them, `fedproto.py` describes FedProto's as runs, `study.py` reads the results of the runs, and
`page.py` shows them next to the paper's figures.
"""
