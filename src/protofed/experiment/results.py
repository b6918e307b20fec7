"""What a run gave: the figures of result.json, the rows of rounds.jsonl and of clients.csv."""

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
from protofed.experiment import checkpoint
from protofed.experiment.accuracy import Reporting, over_clients
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


class State(NamedTuple):
    """The state that a run ended with."""

    config: Config
    members: Members
    server: Any
    kept: dict[int, Any]

    def model(self, client: int | None) -> Model:
        """A client's model, or the server's own."""
        config, members, method = self.config, self.members, self.config.method
        if client is None:
            net = members.nets[0]
            return Model(
                None, net, {}, partial(method.predict_global, net, self.server), members.train[0], members.labels
            )
        if not isinstance(client, int) or not 0 <= client < len(members):
            raise UserError(f"There is no client {client!r}; they are numbered from 0 to {len(members) - 1}.")
        site = members.client(config.run.seed, config.run.rounds - 1, client)
        down, kept = method.broadcast(self.server, client), self.kept[client]
        with one_thread():
            params = params_for_testing(method, site, kept, down, config.train)

        def answer(x: Tensor) -> Scores:
            return method.predict(site.net, params, x, down, kept)

        return Model(client, site.net, method.exportable_params(params, kept), answer, site.data, members.labels)

    def spokesman(self) -> int | None:
        """Whose model predicts when nobody is named: the server's (None) if it has one, else client 0's."""
        own = self.model(None)
        return None if own.answer(torch.zeros(1, *own.data.shape)) else 0

    def reach(self) -> dict[str, Any]:
        """For every client how far its training examples are from their prototypes."""
        return {str(client): self.model(client).farthest() for client in sorted(self.kept)}


@dataclass(frozen=True)
class Result:
    """What a run gave: `summary` is result.json, `rounds` rounds.jsonl, `clients` clients.csv."""

    summary: dict[str, Any]
    rounds: list[RoundRow]
    clients: list[RoundRow]
    folder: Path | None
    state: State = field(repr=False)
    reach: dict[str, Any] = field(repr=False)

    @classmethod
    def load(cls, folder: str | Path, federation: Federation | None = None) -> Result:
        """A finished run from its folder; of data only what was given from Python is needed, and for tuned models."""
        files = Folder.old(Path(folder))
        summary, config = files.result(), Config.load(files.path / "config.toml")
        partition = read_json(files.path / "partition.json", "sha256", "dataset", "labels", "clients")
        if federation:
            config, members = federation.config(config), federation.members(config)
            if any(members.describe()[key] != partition.get(key) for key in ("sha256", "nets")):
                raise UserError(f"{files.path} was made with other data or nets: its partition.json does not fit.")
        elif config.method.tune(config.train.epochs):
            members = Members.of(config)
        else:
            members = Members.remembered(config, partition)
        stored = checkpoint.latest_checkpoint(files.checkpoints, config.method, config.digest())
        if stored is None:
            raise UserError(f"{files.checkpoints} is empty. Start a new run.")
        if stored.rounds < config.run.rounds:
            raise UserError(f"{files.checkpoints} has no whole last round. Write it anew with --resume.")
        state = State(config, members, stored.server, stored.kept)
        return cls(summary, files.rounds(), files.clients(), files.path, state, files.reach())

    @property
    def prototypes(self) -> Prototypes | None:
        """The server's prototypes, if the method has them: `mean` [classes, modes, dim], `support` [classes, modes]."""
        return self.state.config.method.server_prototypes(self.state.members.nets[0], self.state.server)

    @property
    def labels(self) -> tuple[str | int, ...]:
        """What the classes 0, 1, ... are called."""
        return self.state.members.labels

    def model(self, client: int) -> nn.Module:
        """A client's trained module, in the form it was given in, for normalised inputs."""
        held = self.state.model(client)
        return held.net.loaded(held.params)

    def predict(self, x: Any, client: int | None = None, by: str = "head") -> np.ndarray:
        """What a client answers to raw inputs; without one the server's model, or client 0's. See `Model.predict`."""
        held = self.state.model(self.state.spokesman() if client is None else client)
        return replace(held, reach=self.reach.get(str(held.client))).predict(x, by)


def ways(scores: Sequence[Evaluation]) -> list[str]:
    """Every way to predict that the method has, the two standard ones first."""
    return list(dict.fromkeys(["head", "prototype", *(way for score in scores for way in score.correct)]))


def spread(scores: Sequence[Evaluation], way: str, reporting: Reporting) -> dict[str, float] | None:
    """Mean and standard deviation over clients of one way to predict."""
    having = [score for score in scores if way in score.correct]
    return over_clients([score.correct[way] for score in having], [score.total for score in having], reporting)


def accuracy_columns(scores: Sequence[Evaluation], reporting: Reporting) -> RoundRow:
    """The accuracies of a round, by way of predicting; null where nothing was tested."""
    row: RoundRow = {}
    for way in ways(scores):
        over = spread(scores, way, reporting)
        row |= {f"accuracy_{way}": over and over["mean"], f"accuracy_{way}_std": over and over["std"]}
    return row


def mean_terms(reports: Sequence[Report]) -> dict[str, float]:
    """Each term of the loss, averaged over the examples that all clients saw."""
    seen = sum(report.examples_seen for report in reports)
    names = dict.fromkeys(name for report in reports for name in report.terms)
    return {name: sum(report.terms.get(name, 0.0) for report in reports) / seen for name in names} if seen else {}


def cost_columns(ups: Iterable[Any], downs: Iterable[Any]) -> RoundRow:
    """What the messages of a round cost, up and down."""
    up, down = (sum(map(message_size, messages), Size()) for messages in (ups, downs))
    return {
        "up_params": up.params,
        "down_params": down.params,
        "up_counts": up.counts,
        "up_bytes": up.bytes,
        "down_bytes": down.bytes,
    }


def result_summary(
    config: Config, members: Members, rounds: Sequence[RoundRow], scores: Sequence[Evaluation], personal: Personal
) -> RoundRow:
    """The figures of result.json; null is what the method does not have."""

    def total(key: str) -> float:
        return float(sum(row[key] for row in rounds))

    return {
        "method": config.method_name,
        "dataset": members.dataset,
        "remark": members.remark,
        "seed": config.run.seed,
        "rounds": len(rounds),
        "clients": len(members),
        "accuracy": {way: spread(scores, way, config.eval.reporting) for way in ways(scores)},
        "majority": members.majority(),
        "domains": _domains(members, scores),
        "best": _best_round(rounds),
        "global": {
            "accuracy": rounds[-1]["accuracy_global"],
            "prototype": rounds[-1].get("accuracy_global_prototype"),
        },
        "personal": {
            **mean_and_std(list(personal.get("head", {}).values())),
            **{way: mean_and_std(list(found.values())) for way, found in personal.items() if way != "head"},
            "clients": config.eval.clients if personal else None,
        },
        "miou": {"mean": None, "per_class": None},
        "loss": rounds[-1]["loss"],
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


def _domains(members: Members, scores: Sequence[Evaluation]) -> RoundRow | None:
    """Mean accuracies over the clients of each domain, hospital, subject, if clients have one each."""
    if not any(members.groups):
        return None
    mine = {
        group: [score for score in scores if members.groups[score.client] == group]
        for group in dict.fromkeys(members.groups)
    }
    return {
        group: {way: (over := spread(own, way, "clients")) and over["mean"] for way in ways(scores)}
        for group, own in mine.items()
    }


def _best_round(rounds: Sequence[RoundRow]) -> RoundRow | None:
    """The round with the highest accuracy on the validation sets, the first one first, and its test accuracies."""
    way = next((way for way in ("head", "prototype") if any(row.get(f"validation_{way}") for row in rounds)), None)
    if way is None:
        return None
    top = max(rounds, key=lambda row: row.get(f"validation_{way}") or 0.0)
    return {
        "round": top["round"],
        "validation": top[f"validation_{way}"],
        **{key: top[key] for key in top if key.startswith("accuracy_") and not key.endswith("_std")},
    }


def client_rows(members: Members, scores: Sequence[Evaluation], personal: Personal) -> list[RoundRow]:
    """The rows of clients.csv."""

    def row(score: Evaluation) -> RoundRow:
        train = members.train[score.client]
        return {
            "client": score.client,
            "net": members.nets[score.client].name,
            **({"group": members.groups[score.client]} if any(members.groups) else {}),
            "classes": " ".join(str(members.labels[label]) for label in train.labels.unique().tolist()),
            "train": len(train),
            "test": score.total,
            **{
                f"accuracy_{way}": score.correct[way] / score.total if way in score.correct else None
                for way in ways(scores)
            },
            **{
                f"personal_{key}" + ("" if way == "head" else f"_{way}"): found.get(score.client, {}).get(key)
                for way, found in personal.items()
                for key in PERSONAL_KEYS
            },
        }

    return [row(score) for score in scores]
