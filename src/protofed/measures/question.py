"""What a measure reads: a finished run with its models, data, prototypes and trace, and the options of the measure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from protofed.errors import UserError
from protofed.experiment.folder import Folder
from protofed.experiment.model import Model
from protofed.experiment.results import Result, State
from protofed.experiment.stored import GIVEN
from protofed.experiment.stored_members import members_with_data
from protofed.experiment.table import ResultTable, TableCell, data_frame
from protofed.measures.geometry import centres
from protofed.prototypes import Prototypes

Rows = dict[str, dict[str, Any]]


class Measurement(NamedTuple):
    """The values of a measure by row and column, a description, and remarks; None: there is no such value."""

    about: str
    rows: Rows
    notes: tuple[str, ...] = ()

    @property
    def table(self) -> ResultTable:
        """The values as a table."""
        columns = list(dict.fromkeys(column for row in self.rows.values() for column in row))
        rows: list[list[TableCell | str]] = [
            [name, *(TableCell(measured_text(row.get(column)), row.get(column)) for column in columns)]
            for name, row in self.rows.items()
        ]
        return ResultTable(["", *(column.replace("_", " ") for column in columns)], rows, [self.about, *self.notes])

    def to_pandas(self) -> Any:
        """The values as a pandas DataFrame, with the names of the rows as its index."""
        return data_frame(list(self.rows.values())).set_axis(list(self.rows))

    def __repr__(self) -> str:
        return f"{self.about}\n{self.table.text()}" if self.rows else f"{self.about}\nThere is nothing to measure."

    def _repr_html_(self) -> str:
        return self.table.html()


class Measurements(dict[str, Measurement]):
    """Measurements by name."""

    def to_pandas(self) -> Any:
        """All values as one pandas DataFrame with a row per measure, row and column."""
        return data_frame(
            [
                {"measure": name, "row": row, "column": column, "value": value}
                for name, measurement in self.items()
                for row, values in measurement.rows.items()
                for column, value in values.items()
            ]
        )

    def __repr__(self) -> str:
        return "\n\n".join(f"{name}: {measurement!r}" for name, measurement in self.items())

    def _repr_html_(self) -> str:
        return "".join(f"<h4>{name}</h4>{measurement.table.html()}" for name, measurement in self.items())


def measured_text(value: Any) -> str:
    """A number: with three decimals, without any from 10,000 on, with three digits if it is very small or huge.

    >>> [measured_text(value) for value in (None, float("nan"), "2 of 3", 12345, 0.98765, 0.0000321, 0.0, 72100.4)]
    ['-', '-', '2 of 3', '12,345', '0.988', '3.21e-05', '0.000', '72,100']
    """
    if value is None or value != value:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) >= 1e4:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3g}"
    return f"{value:.3g}" if 0 < abs(value) < 1e-3 else f"{value:.3f}"


@dataclass(frozen=True)
class Question:
    """A finished run and the options of a measure."""

    result: Result
    client: int | None = None  # measure only this client; None: all
    accuracy: float = 0.9  # the accuracy until which `cost` is summed
    other_run: Result | None = None  # the run that `discrepancy` compares with
    baseline: Result | None = None  # the run that is to be farther from `other_run`, for FFD
    every: int | None = None  # `bounds` repeats the run and probes every this many rounds; None: see `bound_tables`

    @cached_property
    def state(self) -> State:
        """The final state of the run, with its data."""
        return state_with_data(self.result)

    @property
    def labels(self) -> list[str]:
        """The names of the classes."""
        return [str(label) for label in self.result.labels]

    def name(self, client: int) -> str:
        """The name of a client in tables: "client 3" if it has a number only."""
        return self.result.state.members.client_name(client)

    def must_have_prototypes(self) -> None:
        """It is an error if the server has no prototypes."""
        if self.result.prototypes is None:
            raise UserError(
                f"The server of {self.result.summary['method']} has no prototypes to measure. Use a run of a method "
                "that shares them, such as fedproto."
            )

    @property
    def prototypes(self) -> Prototypes:
        """The server's prototypes, one per class. It is an error if there are none."""
        self.must_have_prototypes()
        prototypes = self.result.prototypes
        assert prototypes is not None
        return centres(prototypes)

    @property
    def trace(self) -> list[tuple[int, Prototypes]]:
        """The rounds in trace/ and the server's prototypes after each; [] if the run has no folder."""
        return Folder(self.result.folder).trace() if self.result.folder else []

    def models(self) -> Iterable[tuple[int, Model]]:
        """The measured clients and their models. The models of a run that diverged are not rejected here."""
        clients = range(len(self.state.members)) if self.client is None else [self.client]
        return ((client, self.state.model(client)) for client in clients)

    def by_class(self, values: Tensor) -> dict[str, float]:
        """Values [classes] by the names of the classes."""
        return dict(zip(self.labels, values.tolist(), strict=True))


def state_with_data(result: Result) -> State:
    """The final state of a run, with its data. They are loaded again if the run was read from its folder."""
    state, folder = result.state, result.folder
    if any(map(len, state.members.train)):
        return state
    if state.config.data.name == GIVEN:
        raise UserError(
            f"The data of {folder} were given in Python, so it can be measured only there: "
            "protofed.measure(protofed.Result.load(folder, federation=...), [...])."
        )
    given = any(choice.name == GIVEN for choice in state.config.nets)
    return state.with_members(members_with_data(state.config, folder, state.members.nets if given else None))
