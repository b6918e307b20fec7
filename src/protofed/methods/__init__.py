"""One file per method; this is the only registry."""

from protofed.core import AnyMethod
from protofed.methods.fedavg import FedAvg
from protofed.methods.fednh import FedNH
from protofed.methods.fedproto import FedProto
from protofed.methods.local import Local
from protofed.methods.mpfedcl import MpFedCL
from protofed.methods.protomargin import ProtoMargin

METHODS: dict[str, type[AnyMethod]] = {
    "fedavg": FedAvg,
    "fednh": FedNH,
    "fedproto": FedProto,
    "local": Local,
    "mpfedcl": MpFedCL,
    "protomargin": ProtoMargin,
}
