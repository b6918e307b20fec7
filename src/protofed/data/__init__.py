"""Data: named datasets, and partitions that divide them among clients.

`sources.py` is the registry of datasets, `partitions/` that of partitions. This package may import the vocabulary only:
errors, draws, examples, net, prototypes, messages, core, training.
"""
