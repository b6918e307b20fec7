"""The distance between two models, for proximal terms (FedProx, Ditto)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from protofed.core import Net, Params


def squared_distance(net: Net, params: Params, reference: Params) -> Tensor:
    """||w - w_ref||^2 [] over the parameters that train, summed in the order of their names."""
    names = [name for name in sorted(params) if net.trains(name, params[name])]
    return torch.stack([(params[name] - reference[name]).square().sum() for name in names]).sum()
