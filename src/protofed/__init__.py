"""protofed: prototype-based federated learning for clients that differ in data, labels, models and machines.

>>> import protofed
>>> result = protofed.run({"run": {"rounds": 2}, "data": {"clients": 4}})
>>> sorted(result.summary["accuracy"])
['head', 'prototype', 'prototype_all']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Config", "Federation", "Result", "UserError", "run"]

if TYPE_CHECKING:
    from protofed.errors import UserError
    from protofed.experiment.config import Config
    from protofed.experiment.federation import Federation
    from protofed.experiment.results import Result
    from protofed.experiment.run import run


def __getattr__(name: str) -> Any:
    """Load torch and the rest only when something of it is asked for."""
    import importlib

    homes = {
        "Config": "protofed.experiment.config",
        "UserError": "protofed.errors",
        "Federation": "protofed.experiment.federation",
        "Result": "protofed.experiment.results",
        "run": "protofed.experiment.run",
    }
    if name not in homes:
        raise AttributeError(f"module 'protofed' has no attribute {name!r}")
    found = getattr(importlib.import_module(homes[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
