"""The registry of watchers that an experiment can name in `run.watchers`."""

from __future__ import annotations

from typing import Any

from protofed.errors import UserError
from protofed.experiment.mlflow import MLflow
from protofed.experiment.tensorboard import TensorBoard
from protofed.experiment.watchers import Watcher
from protofed.plugins import Registry


def watcher_class(found: Any, name: str) -> type[Watcher]:
    """The class of a watcher that was found by a name outside the package."""
    if not (isinstance(found, type) and issubclass(found, Watcher)):
        kind = "class" if isinstance(found, type) else type(found).__name__
        raise UserError(f'"{name}" is a {kind}; must be a class derived from protofed.Watcher.')
    return found


WATCHERS: Registry[type[Watcher]] = Registry("watchers", watcher_class, {"mlflow": MLflow, "tensorboard": TensorBoard})
