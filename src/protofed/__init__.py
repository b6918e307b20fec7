"""protofed: prototype-based federated learning for clients that differ in data, labels, models and machines.

>>> import protofed
>>> result = protofed.run({"run": {"rounds": 2}, "data": {"clients": 4}})
>>> sorted(result.summary["accuracy"])
['head', 'head_own', 'prototype', 'prototype_all']

The public names are:

- `run`: run an experiment.
- `load`: read the result of a finished run from its folder.
- `sweep`: run several settings with several seeds, and compare them.
- `compare`: compare runs, also over seeds.
- `draw`: draw runs as a picture.
- `measure`: compute measures from a result.
- `join`: let a new client join a finished run.
- `check_method`: check a method of your own, as `protofed check` does.
- `Config`: an experiment with a value for every option.
- `Federation`: your own arrays and modules as the clients of an experiment.
- `Result`: what a run returns.
- `Folder`: the files of a run folder.
- `Watcher`: observe a run, round by round.
- `METHODS`: the methods by name; add your own here.
- `UserError`: the errors that you can fix; the message says how.

What these functions return prints in a few lines, is shown as a table in a notebook, and has `to_pandas()`. To write a
method, use the names of `protofed.core`. Everything else may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "Config",
    "Federation",
    "Folder",
    "Result",
    "UserError",
    "Watcher",
    "check_method",
    "compare",
    "draw",
    "join",
    "load",
    "measure",
    "run",
    "sweep",
]

if TYPE_CHECKING:
    from protofed.errors import UserError
    from protofed.experiment.config import Config
    from protofed.experiment.federation import Federation
    from protofed.experiment.folder import Folder
    from protofed.experiment.results import Result, load
    from protofed.experiment.run import run
    from protofed.experiment.watchers import Watcher
    from protofed.measures.on_demand import measure
    from protofed.methods import METHODS
    from protofed.models.join import join
    from protofed.pictures.drawing import draw
    from protofed.studies.comparison import compare
    from protofed.studies.sweep import sweep
    from protofed.testing.method_check import check_method

_MODULES = {
    "METHODS": "protofed.methods",
    "Config": "protofed.experiment.config",
    "Federation": "protofed.experiment.federation",
    "Folder": "protofed.experiment.folder",
    "Result": "protofed.experiment.results",
    "UserError": "protofed.errors",
    "Watcher": "protofed.experiment.watchers",
    "check_method": "protofed.testing.method_check",
    "compare": "protofed.studies.comparison",
    "draw": "protofed.pictures.drawing",
    "join": "protofed.models.join",
    "load": "protofed.experiment.results",
    "measure": "protofed.measures.on_demand",
    "run": "protofed.experiment.run",
    "sweep": "protofed.studies.sweep",
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
