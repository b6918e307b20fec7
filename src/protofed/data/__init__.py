"""Data: datasets by name, and partitions that divide them among clients.

`sources.py` has the registry of datasets, `partitions/` that of partitions. This package may import only itself and the
vocabulary: errors, draws, examples, net, prototypes, messages, core, training.
"""
