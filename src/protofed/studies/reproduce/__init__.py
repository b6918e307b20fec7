"""The tables and figures of the papers.

`papers.py` lists all of them, `fedproto.py` describes FedProto's as runs, `figures.py` reads the figures of a run,
`study.py` keeps those of a study, and `page.py` shows them next to the paper's figures.
"""
