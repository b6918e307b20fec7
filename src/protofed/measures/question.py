"""A finished run and what is wanted of it: its models with the data, its prototypes, its trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from protofed.errors import UserError
from protofed.experiment.config import GIVEN
from protofed.experiment.folder import Folder
from protofed.experiment.members import Members
from protofed.experiment.model import Model
from protofed.experiment.results import Result, State
from protofed.measures.geometry import centres
from protofed.prototypes import Prototypes

Rows = dict[str, dict[str, Any]]


class Measurement(NamedTuple):
    """A measure of a run: what it is, and its figures by row and column; None is what there is not."""

    about: str
    rows: Rows


@dataclass(frozen=True)
class Question:
    """A run, and what is wanted of it."""

    result: Result
    client: int | None = None
    accuracy: float = 0.9
    beside: Result | None = None

    @cached_property
    def state(self) -> State:
        """The run's models with its data."""
        return state_with_data(self.result)

    @property
    def labels(self) -> list[str]:
        """The classes' names."""
        return [str(label) for label in self.result.labels]

    @property
    def prototypes(self) -> Prototypes:
        """The server's, one for each class."""
        held = self.result.prototypes
        if held is None:
            raise UserError(
                f"The server of {self.result.summary['method']} has no prototypes to measure. Use a run of a method "
                "that shares them, such as fedproto."
            )
        return centres(held)

    @property
    def trace(self) -> list[tuple[int, Prototypes]]:
        """The server's prototypes over the rounds that were kept."""
        return Folder(self.result.folder).trace() if self.result.folder else []

    def models(self) -> Iterable[tuple[int, Model]]:
        """The models of the clients that are asked about; those of a run that has diverged answer as they can."""
        clients = range(len(self.state.members)) if self.client is None else [self.client]
        return ((client, self.state.model(client)) for client in clients)

    def by_class(self, values: Tensor) -> dict[str, float]:
        """Values [classes] by the classes' names."""
        return dict(zip(self.labels, values.tolist(), strict=True))


def state_with_data(result: Result) -> State:
    """The state of a run, with the data that a run folder does not hold."""
    state, where = result.state, result.folder
    if any(map(len, state.members.train)):
        return state
    if state.config.data.name == GIVEN:
        raise UserError(
            f"{where} has data that were given to it in Python, so it is measured there: "
            "protofed.measures.on_demand.measure(protofed.Result.load(folder, federation=...), [...])."
        )
    members = Members.of(state.config)
    if where and (Folder(where).partition() or {}).get("sha256") != members.describe()["sha256"]:
        raise UserError(f"{where} was made with other data than there are now: its partition.json does not fit.")
    return state._replace(members=members)
