"""Checks of methods, nets and partitions of your own, as the tests of protofed check its own ones.

>>> from protofed.methods.fedavg import FedAvg
>>> from protofed.testing import check_method
>>> len(check_method(FedAvg)) > 5
True

`protofed check FILE.py` runs them from the command line. A check raises a `UserError` that says what is wrong, with the
file and line; otherwise it returns a sentence for each thing that it found to be true. This package may import the
vocabulary, data, nets, methods, engines, trust and experiment.
"""

from protofed.testing.method_check import check_method
from protofed.testing.part_checks import check_net, check_partition

__all__ = ["check_method", "check_net", "check_partition"]
