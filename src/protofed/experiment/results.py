"""The result of a run, and the columns of rounds.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from protofed.data.table.recipe import shared_recipe
from protofed.engines.engine import Evaluation, Report
from protofed.engines.scoring import client_scores
from protofed.engines.threads import one_thread
from protofed.errors import UserError
from protofed.experiment.accuracy import Reporting, accuracy_mean_and_std
from protofed.experiment.calibration import fit_temperatures
from protofed.experiment.checkpoint import latest_checkpoint
from protofed.experiment.config import Config
from protofed.experiment.folder import Folder
from protofed.experiment.kept_states import AllStates, states_of_all
from protofed.experiment.members import Members
from protofed.experiment.model import Model
from protofed.experiment.reading import read_json
from protofed.experiment.roster import clients_to_test
from protofed.experiment.server_model import server_predictor
from protofed.experiment.stored_members import members_with_data, with_data
from protofed.experiment.table import ResultTable, TableCell, data_frame
from protofed.experiment.unknown import Calibration, UnknownRule, client_calibration
from protofed.experiment.wording import percent, quantity
from protofed.messages import Size, message_size
from protofed.net import selected
from protofed.prototypes import Prototypes
from protofed.training import params_for_testing
from protofed.trust.known_code import trusting

if TYPE_CHECKING:
    from protofed.experiment.federation import Federation

RoundRow = dict[str, Any]
"""A row of rounds.jsonl or clients.csv, or a part of result.json: numbers by name."""


class State(NamedTuple):
    """The state that a run ended with."""

    config: Config  # its run.rounds is the number of rounds that were done
    members: Members
    server: Any
    kept: Mapping[int, Any]  # of every client; {} if clients keep their states on machines of their own

    def model(self, client: int | str | None) -> Model:
        """The model of a client, given by its number or name, or of the server (None)."""
        config, members, method = self.config, self.members, self.config.method
        if client is None:
            predict, recipe = server_predictor(method, members, self.server), shared_recipe(members.recipes)
            return Model(None, members.nets[0], {}, predict, members.train[0], members.labels, recipe=recipe)
        client = members.client_number(client)
        if client not in self.kept:
            raise UserError(
                f"The model of client {client} is on the client's own machine: this run folder is that of a deployed "
                "federation's server, and has no models of clients."
            )
        return client_model(config, members, client, self.kept[client], method.broadcast(self.server, client))

    def with_members(self, members: Members) -> State:
        """The state with members that have data."""
        trained = self.kept.trained if isinstance(self.kept, AllStates) else self.kept
        kept = states_of_all(self.config, len(members), trained, lambda: members)
        return self._replace(members=members, kept=kept)

    def default_client(self) -> int | None:
        """The client that predicts if the user names none: the server (None) if it has a model, else client 0."""
        model = self.model(None)
        return None if model.compute_scores(torch.zeros(1, *model.data.shape)) else 0

    def temperatures(self) -> dict[int, dict[str, float]]:
        """The temperature of each client and way of predicting; {} without validation sets."""
        sets = {client: self.members.validation[client] for client in self._tested()} if self.members.validation else {}
        return {
            client: fit_temperatures(self.model(client), examples) for client, examples in sets.items() if len(examples)
        }

    def _tested(self) -> list[int]:
        """The clients that are tested and have their models here."""
        return [client for client in clients_to_test(self.config, len(self.members)) if client in self.kept]

    def calibrations(self) -> dict[int, Calibration]:
        """The rules for unknown inputs of the clients that have examples for a limit."""
        if self.config.eval.unknown == "none":
            return {}
        found = {
            client: client_calibration(self.model(client), self.config.eval, self.members) for client in self._tested()
        }
        return {client: calibration for client, calibration in found.items() if calibration}


def client_model(config: Config, members: Members, client: int, kept: Any, down: Any) -> Model:
    """The model of a client after the last round, from what it keeps and the message that the server would send it."""
    method, site = config.method, members.client(config.run.seed, config.run.rounds - 1, client)
    with one_thread():
        params = params_for_testing(method, site, kept, down, config.train)
    compute_scores = client_scores(method, site.net, params, down, kept)
    recipe, why = members.recipes[client] if members.recipes else None, ""
    try:
        exportable = method.exportable_params(params, kept)
    except UserError as problem:
        exportable, why = selected(params, "body."), str(problem)
    return Model(client, site.net, exportable, compute_scores, site.data, members.labels, None, recipe, not_one_net=why)


@dataclass(frozen=True)
class Result:
    """The result of a run: `summary` is result.json, `rounds` rounds.jsonl, `clients` clients.csv."""

    summary: dict[str, Any]
    rounds: list[RoundRow]
    clients: list[RoundRow]
    folder: Path | None
    state: State = field(repr=False)
    unknown: dict[str, Any] = field(repr=False)  # unknown.json: the rules for unknown inputs, by client

    @classmethod
    def load(
        cls,
        folder: str | Path,
        federation: Federation | None = None,
        *,
        nets: Sequence[Any] | None = None,
        trust_code: bool = False,
    ) -> Result:
        """The result of a finished run, from its folder.

        Data are needed only if a `federation` was given in Python, or if the method tunes models before a test. `nets`
        are needed if they were given to `run`. `trust_code`: run the code that the folder names, although you have not
        run it before, or it is not that of the run.
        """
        files = Folder.existing(Path(folder))
        summary = files.result()
        with trusting(trust_code):
            config = Config.load(files.path / "config.toml").with_rounds(summary["rounds"])
        partition = read_json(files.path / "partition.json", "sha256", "dataset", "labels", "clients")
        if federation or nets is not None:
            config = federation.config(config) if federation else config
            members = federation.members(config) if federation else Members.of(config, nets=nets)
            if any(members.describe()[key] != partition.get(key) for key in ("sha256", "nets")):
                raise UserError(
                    f"{files.path} was made with other data or nets: its partition.json does not match. "
                    f"Give the {'federation' if federation else 'nets and data'} of that run."
                )
        elif config.method.tune(config.train.epochs) and config.engine.name != "flower":
            members = members_with_data(config, files.path)
        else:
            members = Members.from_partition(config, partition)
        checkpoint = latest_checkpoint(files.checkpoints, config.method, config.digest())
        if checkpoint is None:
            raise UserError(f"{files.checkpoints} is empty. Start a new run.")
        if checkpoint.rounds < config.run.rounds:
            raise UserError(
                f"{files.checkpoints} has no intact checkpoint of the last round. "
                f"Run `protofed run --resume --out {files.path}` to recreate it."
            )
        checkpoint.close()
        kept = states_of_all(
            config, len(members), checkpoint.kept, cache(lambda: with_data(members, config, files.path))
        )
        state = State(config, members, checkpoint.server, kept)
        return cls(summary, files.rounds(), files.clients(), files.path, state, files.unknown_rules())

    def __repr__(self) -> str:
        summary, where = self.summary, f", folder={str(self.folder)!r}" if self.folder else ""
        return f"Result({summary['method']} on {self.state.members.title}, {self._figures()}{where})"

    def _figures(self) -> str:
        """The length of the run and its accuracies, in words."""
        accuracies = {way: spread for way, spread in self.summary["accuracy"].items() if spread}
        shown = [f"{percent(spread)} by {way}" for way, spread in accuracies.items() if way in ("head", "prototype")]
        clients = f"{quantity(self.summary['rounds'], 'round')}, {quantity(self.summary['clients'], 'client')}"
        return f"{clients}: {', '.join(shown) or 'not tested'}"

    def _repr_html_(self) -> str:
        return self.table.html()

    @property
    def table(self) -> ResultTable:
        """The accuracies by way of predicting: mean and standard deviation over clients."""
        spreads = {way: spread for way, spread in self.summary["accuracy"].items() if spread}
        rows: list[list[TableCell | str]] = [
            [way, TableCell(percent(spread), spread["mean"], spread["std"])] for way, spread in spreads.items()
        ]
        note = f"{self.summary['method']} on {self.state.members.title}, {self._figures()}."
        return ResultTable(["by", "accuracy over clients"], rows, [note])

    def to_pandas(self) -> Any:
        """The rounds as a pandas DataFrame, a row per round: the content of rounds.jsonl."""
        return data_frame(self.rounds)

    @property
    def prototypes(self) -> Prototypes | None:
        """The server's prototypes, if the method has them: `mean` [classes, modes, dim], `support` [classes, modes]."""
        return self.state.config.method.server_prototypes(self.state.members.nets[0], self.state.server)

    @property
    def labels(self) -> tuple[str | int, ...]:
        """The names of the classes 0, 1, ..."""
        return self.state.members.labels

    def model(self, client: int | str) -> nn.Module:
        """A client's trained module, for normalised inputs. A module given in Python keeps its form."""
        model = self.state.model(client)
        model.must_be_one_net()
        return model.net.loaded(model.params)

    def predict(self, x: Any, client: int | str | None = None, by: str = "head") -> np.ndarray:
        """Predictions of a client for raw inputs: see `Model.predict`. Without a client: of `State.default_client`."""
        return self.predictor(client).predict(x, by)

    def predictor(self, client: int | str | None = None) -> Model:
        """The model of a client, by default of `State.default_client`, with what was measured after the last round."""
        if client is None and (client := self.state.default_client()) is None:
            self.state.members.require_same_inputs()
        model = self.state.model(client)
        stored = self.unknown.get(str(model.client))
        rule = UnknownRule.from_json(stored, len(model.labels)) if stored else None
        row = next((row for row in self.clients if row["client"] == model.client), {})
        prefix = "temperature_"
        temperatures = {key.removeprefix(prefix): row[key] for key in row if key.startswith(prefix) and row[key]}
        return replace(model, unknown=rule, temperatures=temperatures)


def load(
    folder: str | Path,
    federation: Federation | None = None,
    *,
    nets: Sequence[Any] | None = None,
    trust_code: bool = False,
) -> Result:
    """The result of a finished run, from its folder.

    `federation`, `nets`: those that were given to `run`. `trust_code`: run the code that the folder names, although you
    have not run it before, or it is not that of the run.
    """
    return Result.load(folder, federation, nets=nets, trust_code=trust_code)


def ways_of_predicting(evaluations: Sequence[Evaluation]) -> list[str]:
    """The method's ways of predicting. The two standard ones always come first, even if the method lacks them."""
    return list(
        dict.fromkeys(["head", "prototype", *(way for evaluation in evaluations for way in evaluation.correct)])
    )


def accuracy_over_clients(evaluations: Sequence[Evaluation], way: str, reporting: Reporting) -> dict[str, float] | None:
    """The mean and standard deviation over clients for one way of predicting; None if no client was tested this way."""
    tested = [evaluation for evaluation in evaluations if way in evaluation.correct]
    return accuracy_mean_and_std(
        [evaluation.correct[way] for evaluation in tested], [evaluation.total for evaluation in tested], reporting
    )


def accuracy_columns(evaluations: Sequence[Evaluation], reporting: Reporting) -> RoundRow:
    """A round's columns with the accuracy per way of predicting; null where nothing was tested."""
    row: RoundRow = {}
    for way in ways_of_predicting(evaluations):
        accuracy = accuracy_over_clients(evaluations, way, reporting)
        row |= {f"accuracy_{way}": accuracy and accuracy["mean"], f"accuracy_{way}_std": accuracy and accuracy["std"]}
    return row


def validation_columns(evaluations: Sequence[Evaluation], reporting: Reporting) -> RoundRow:
    """A round's columns with the mean accuracies on the clients' validation sets."""
    accuracies = {way: accuracy_over_clients(evaluations, way, reporting) for way in ways_of_predicting(evaluations)}
    return {f"validation_{way}": accuracy["mean"] for way, accuracy in accuracies.items() if accuracy}


def mean_terms(reports: Sequence[Report]) -> dict[str, float]:
    """Each term of the loss, averaged over all examples that the clients trained on."""
    seen = sum(report.examples_seen for report in reports)
    names = dict.fromkeys(name for report in reports for name in report.terms)
    return {name: sum(report.terms.get(name, 0.0) for report in reports) / seen for name in names} if seen else {}


def cost_columns(ups: Iterable[Any], downs: Iterable[Any]) -> RoundRow:
    """A round's columns with the size of its messages, up to the server and down to the clients."""
    up, down = (sum(map(message_size, messages), Size()) for messages in (ups, downs))
    return {
        "up_params": up.params,
        "down_params": down.params,
        "up_counts": up.counts,
        "up_bytes": up.bytes,
        "down_bytes": down.bytes,
    }
