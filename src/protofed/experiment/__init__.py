"""An experiment: its description, the clients it builds, the run, and the folder and result it leaves.

`config.py` reads an experiment file, `members.py` builds the clients, `runner.py` does the rounds, `results.py` has the
figures. This package may import the vocabulary, data, nets, methods, engines and trust.
"""
