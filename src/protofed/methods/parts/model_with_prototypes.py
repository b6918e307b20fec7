"""The message of methods that send weights and prototypes."""

from __future__ import annotations

from typing import NamedTuple

from protofed.core import Params, Prototypes


class ModelWithPrototypes(NamedTuple):
    """A model and prototypes [classes, modes, dim]."""

    params: Params
    prototypes: Prototypes
