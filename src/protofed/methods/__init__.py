"""One file per method; this is the only registry."""

from protofed.core import Method
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedproto import FedProto
from protofed.methods.local import Local

METHODS: dict[str, type[Method]] = {"fedavg": FedAvg, "fedproto": FedProto, "local": Local}  # type: ignore[type-arg]
