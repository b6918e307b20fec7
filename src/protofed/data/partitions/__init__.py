"""The registry of partitions, which divide a dataset among clients.

`base.py` has their interface and common functions. The other files group them by what they control: the classes, the
sizes or the origins of the clients' data.
"""

from protofed.data.partitions.base import Partition, partition_class
from protofed.data.partitions.by_class import Dirichlet, NWay, Shards, WithReplacement
from protofed.data.partitions.by_origin import ByDomain, FromFile, Natural
from protofed.data.partitions.by_size import DirichletPowerLaw, FedProxPowerLaw, Iid, Pooled, PowerLaw
from protofed.plugins import Registry

_BUILT_IN: dict[str, type[Partition]] = {
    "by_domain": ByDomain,
    "dirichlet": Dirichlet,
    "dirichlet_power_law": DirichletPowerLaw,
    "fedprox_power_law": FedProxPowerLaw,
    "file": FromFile,
    "iid": Iid,
    "natural": Natural,
    "nway": NWay,
    "pooled": Pooled,
    "power_law": PowerLaw,
    "shards": Shards,
    "with_replacement": WithReplacement,
}
PARTITIONS = Registry("partitions", partition_class, _BUILT_IN)
_MIX_ORIGINS = _BUILT_IN.keys() - {"by_domain", "file", "natural", "pooled"}
"""The partitions that divide examples without regard to the domain, hospital or person that they come from."""


def mixed_origins_notes(partition: str, origins: int) -> list[str]:
    """A caution if a partition mixes examples of which a file says to which of its clients they belong."""
    if origins < 2 or partition not in _MIX_ORIGINS:
        return []
    return [
        f"careful: the file says which of {origins} clients an example belongs to, and partition {partition} mixes "
        "them. To keep them apart, use partition.name = natural"
    ]
