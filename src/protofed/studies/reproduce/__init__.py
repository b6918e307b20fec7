"""The tables and figures of the papers: `papers.py` lists all of them, `fedproto.py` describes FedProto's as runs,
`study.py` reads what the runs gave, `page.py` shows it next to the paper's figures.
"""
