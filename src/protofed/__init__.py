"""protofed: prototype-based federated learning for clients that differ in data, labels, models and machines.

>>> import protofed
>>> result = protofed.run({"run": {"rounds": 2}, "data": {"clients": 4}})
>>> sorted(result.summary["accuracy"])
['head', 'head_own', 'prototype', 'prototype_all']

The public names are:

- `run`: run an experiment.
- `Config`: an experiment with a value for every option.
- `Federation`: your own arrays and modules as the clients of an experiment.
- `Result`: what a run returns; `Result.load` reads it from a run folder.
- `Folder`: the files of a run folder.
- `measure`: compute measures from a result.
- `Watcher`: observe a run, round by round.
- `METHODS`: the methods by name; add your own here.
- `UserError`: the errors that you can fix; the message says how.

To write a method, use the names of `protofed.core`. Everything else may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["METHODS", "Config", "Federation", "Folder", "Result", "UserError", "Watcher", "measure", "run"]

if TYPE_CHECKING:
    from protofed.errors import UserError
    from protofed.experiment.config import Config
    from protofed.experiment.federation import Federation
    from protofed.experiment.folder import Folder
    from protofed.experiment.results import Result
    from protofed.experiment.run import run
    from protofed.experiment.watchers import Watcher
    from protofed.measures.on_demand import measure
    from protofed.methods import METHODS

_MODULES = {
    "METHODS": "protofed.methods",
    "Config": "protofed.experiment.config",
    "Federation": "protofed.experiment.federation",
    "Folder": "protofed.experiment.folder",
    "Result": "protofed.experiment.results",
    "UserError": "protofed.errors",
    "Watcher": "protofed.experiment.watchers",
    "measure": "protofed.measures.on_demand",
    "run": "protofed.experiment.run",
}


def __getattr__(name: str) -> Any:
    """Import a public name, and torch with it, when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'protofed' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
