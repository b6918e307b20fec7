"""The result of a run, and the content of result.json, rounds.jsonl and clients.csv."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from protofed import __version__
from protofed.engines.engine import Evaluation, Report
from protofed.engines.threads import one_thread
from protofed.errors import UserError
from protofed.experiment.accuracy import Reporting, accuracy_mean_and_std
from protofed.experiment.checkpoint import latest_checkpoint
from protofed.experiment.config import Config
from protofed.experiment.folder import Folder, read_json
from protofed.experiment.members import Members
from protofed.experiment.model import Model
from protofed.experiment.personal import PERSONAL_KEYS, Personal, mean_and_std
from protofed.messages import Size, message_size
from protofed.prototypes import Prototypes
from protofed.training import params_for_testing

if TYPE_CHECKING:
    from protofed.core import Scores
    from protofed.experiment.federation import Federation

RoundRow = dict[str, Any]
"""A row of rounds.jsonl or clients.csv, or a part of result.json: numbers by name."""


class State(NamedTuple):
    """The state that a run ended with."""

    config: Config  # its run.rounds is the number of rounds that were done
    members: Members
    server: Any
    kept: dict[int, Any]

    def model(self, client: int | None) -> Model:
        """The model of a client, or of the server (None)."""
        config, members, method = self.config, self.members, self.config.method
        if client is None:
            net = members.nets[0]
            predict_global = partial(method.predict_global, net, self.server)
            return Model(None, net, {}, predict_global, members.train[0], members.labels)
        if not isinstance(client, int) or not 0 <= client < len(members):
            raise UserError(f"There is no client {client!r}; clients are numbered from 0 to {len(members) - 1}.")
        site = members.client(config.run.seed, config.run.rounds - 1, client)
        down, kept = method.broadcast(self.server, client), self.kept[client]
        with one_thread():
            params = params_for_testing(method, site, kept, down, config.train)

        def compute_scores(x: Tensor) -> Scores:
            return method.predict(site.net, params, x, down, kept)

        exportable = method.exportable_params(params, kept)
        return Model(client, site.net, exportable, compute_scores, site.data, members.labels)

    def default_client(self) -> int | None:
        """The client that predicts if the user names none: the server (None) if it has a model, else client 0."""
        model = self.model(None)
        return None if model.compute_scores(torch.zeros(1, *model.data.shape)) else 0

    def distance_limits(self) -> dict[str, Any]:
        """The `DistanceLimits` of every client, for reach.json."""
        return {str(client): self.model(client).training_distance_limits() for client in sorted(self.kept)}


@dataclass(frozen=True)
class Result:
    """The result of a run: `summary` is result.json, `rounds` rounds.jsonl, `clients` clients.csv."""

    summary: dict[str, Any]
    rounds: list[RoundRow]
    clients: list[RoundRow]
    folder: Path | None
    state: State = field(repr=False)
    distance_limits: dict[str, Any] = field(repr=False)  # reach.json

    @classmethod
    def load(cls, folder: str | Path, federation: Federation | None = None) -> Result:
        """The result of a finished run, from its folder.

        Data are needed only if a `federation` was given in Python, or if the method tunes models before a test.
        """
        files = Folder.existing(Path(folder))
        summary = files.result()
        config = Config.load(files.path / "config.toml").with_rounds(summary["rounds"])
        partition = read_json(files.path / "partition.json", "sha256", "dataset", "labels", "clients")
        if federation:
            config, members = federation.config(config), federation.members(config)
            if any(members.describe()[key] != partition.get(key) for key in ("sha256", "nets")):
                raise UserError(
                    f"{files.path} was made with other data or nets: its partition.json does not match. "
                    "Give the federation of that run."
                )
        elif config.method.tune(config.train.epochs):
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
        state = State(config, members, checkpoint.server, checkpoint.kept)
        return cls(summary, files.rounds(), files.clients(), files.path, state, files.distance_limits())

    @property
    def prototypes(self) -> Prototypes | None:
        """The server's prototypes, if the method has them: `mean` [classes, modes, dim], `support` [classes, modes]."""
        return self.state.config.method.server_prototypes(self.state.members.nets[0], self.state.server)

    @property
    def labels(self) -> tuple[str | int, ...]:
        """The names of the classes 0, 1, ..."""
        return self.state.members.labels

    def model(self, client: int) -> nn.Module:
        """A client's trained module, for normalised inputs. A module given in Python keeps its form."""
        model = self.state.model(client)
        return model.net.loaded(model.params)

    def predict(self, x: Any, client: int | None = None, by: str = "head") -> np.ndarray:
        """Predictions of a client for raw inputs: see `Model.predict`. Without a client: of `State.default_client`."""
        model = self.state.model(self.state.default_client() if client is None else client)
        return replace(model, distance_limits=self.distance_limits.get(str(model.client))).predict(x, by)


def members_with_data(config: Config, folder: Path | None) -> Members:
    """The members of a run with their data, which a run folder does not hold. They must match its partition.json."""
    members = Members.of(config)
    if folder and members.describe()["sha256"] != (Folder(folder).partition() or {}).get("sha256"):
        raise UserError(
            f"{folder} was run on other data than those found now: its partition.json does not match them. "
            "Restore the data of the run."
        )
    return members


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


def result_summary(
    config: Config, members: Members, rounds: Sequence[RoundRow], evaluations: Sequence[Evaluation], personal: Personal
) -> RoundRow:
    """The content of result.json. Values that the method does not have are null."""
    last = rounds[-1]

    def total(key: str) -> float:
        return float(sum(row[key] for row in rounds))

    return {
        "method": config.method_name,
        "dataset": members.dataset,
        "remark": members.remark,
        "seed": config.run.seed,
        "rounds": len(rounds),
        "ended_by": "rounds" if len(rounds) == config.run.rounds else "seconds",
        "clients": len(members),
        "accuracy": {
            way: accuracy_over_clients(evaluations, way, config.eval.reporting)
            for way in ways_of_predicting(evaluations)
        },
        "majority": members.majority(),
        "domains": _domains(members, evaluations),
        "best": _best_round(rounds),
        "global": {"accuracy": last["accuracy_global"], "prototype": last.get("accuracy_global_prototype")},
        "personal": {
            **mean_and_std(list(personal.get("head", {}).values())),
            **{way: mean_and_std(list(by_client.values())) for way, by_client in personal.items() if way != "head"},
            "clients": config.eval.clients if personal else None,
        },
        "miou": {"mean": None, "per_class": None},
        "loss": last["loss"],
        "cost": {
            **{key: round(total(key) / len(rounds)) for key in ("up_params", "down_params", "up_counts")},
            **{key: round(total(key)) for key in ("up_bytes", "down_bytes")},
        },
        "rejected": sum(len(row["rejected"]) for row in rounds),
        "seconds": {"total": total("seconds"), "per_round": total("seconds") / len(rounds)},
        "engine": config.engine.name,
        "versions": {
            "protofed": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def _domains(members: Members, evaluations: Sequence[Evaluation]) -> RoundRow | None:
    """The mean accuracies over the clients of each domain, hospital or subject; None if clients have no single one."""
    if not any(members.groups):
        return None
    by_group = {
        group: [evaluation for evaluation in evaluations if members.groups[evaluation.client] == group]
        for group in dict.fromkeys(members.groups)
    }
    return {
        group: {
            way: (accuracy := accuracy_over_clients(of_group, way, "clients")) and accuracy["mean"]
            for way in ways_of_predicting(evaluations)
        }
        for group, of_group in by_group.items()
    }


def _best_round(rounds: Sequence[RoundRow]) -> RoundRow | None:
    """The first round with the highest accuracy on the validation sets, and its test accuracies."""
    way = next((way for way in ("head", "prototype") if any(row.get(f"validation_{way}") for row in rounds)), None)
    if way is None:
        return None
    best = max(rounds, key=lambda row: row.get(f"validation_{way}") or 0.0)
    return {
        "round": best["round"],
        "validation": best[f"validation_{way}"],
        **{key: best[key] for key in best if key.startswith("accuracy_") and not key.endswith("_std")},
    }


def client_rows(members: Members, evaluations: Sequence[Evaluation], personal: Personal) -> list[RoundRow]:
    """The rows of clients.csv."""

    def row(evaluation: Evaluation) -> RoundRow:
        client, correct, total = evaluation
        train = members.train[client]
        return {
            "client": client,
            "net": members.nets[client].name,
            **({"group": members.groups[client]} if any(members.groups) else {}),
            "classes": " ".join(str(members.labels[label]) for label in train.labels.unique().tolist()),
            "train": len(train),
            "test": total,
            **{
                f"accuracy_{way}": correct[way] / total if way in correct else None
                for way in ways_of_predicting(evaluations)
            },
            **{
                f"personal_{key}" + ("" if way == "head" else f"_{way}"): by_client.get(client, {}).get(key)
                for way, by_client in personal.items()
                for key in PERSONAL_KEYS
            },
        }

    return [row(evaluation) for evaluation in evaluations]
