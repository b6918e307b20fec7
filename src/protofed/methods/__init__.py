"""Methods: one file per method; this is the only registry. `parts/` holds what several methods share.

This package may import the vocabulary only: errors, draws, examples, net, prototypes, messages, core, training.
"""

from protofed.contract import method_class
from protofed.core import AnyMethod
from protofed.methods.creff import CReFF
from protofed.methods.ditto import Ditto
from protofed.methods.fedatt import FedAtt
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedbabu import FedBABU
from protofed.methods.fednh import FedNH
from protofed.methods.fedper import FedPer
from protofed.methods.fedproto import FedProto
from protofed.methods.fedprox import FedProx
from protofed.methods.fedrep import FedRep
from protofed.methods.fedrod import FedROD
from protofed.methods.fedtgp import FedTGP
from protofed.methods.fesem import FeSEM
from protofed.methods.fpl import FPL
from protofed.methods.local import Local
from protofed.methods.mpfedcl import MpFedCL
from protofed.methods.protomargin import ProtoMargin
from protofed.plugins import Registry

_OURS: dict[str, type[AnyMethod]] = {
    "creff": CReFF,
    "ditto": Ditto,
    "fedatt": FedAtt,
    "fedavg": FedAvg,
    "fedbabu": FedBABU,
    "fednh": FedNH,
    "fedper": FedPer,
    "fedproto": FedProto,
    "fedprox": FedProx,
    "fedrep": FedRep,
    "fedrod": FedROD,
    "fedtgp": FedTGP,
    "fesem": FeSEM,
    "fpl": FPL,
    "local": Local,
    "mpfedcl": MpFedCL,
    "protomargin": ProtoMargin,
}
METHODS = Registry("methods", method_class, _OURS)
