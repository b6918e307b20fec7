"""A run: rounds, sampling, evaluation, checkpoints -> Result."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from protofed import __version__, checkpoint
from protofed.config import Config
from protofed.engines import ENGINES
from protofed.engines.engine import Engine, Report, Score
from protofed.errors import UserError
from protofed.federation import Federation
from protofed.folder import Folder
from protofed.measures.accuracy import hits, over_clients
from protofed.messages import Size, size
from protofed.net import EVALUATE
from protofed.trust.guard import sift

Row = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What a run gave: `summary` is result.json, `rounds` rounds.jsonl, `clients` clients.csv."""

    summary: dict[str, Any]
    rounds: list[Row]
    clients: list[Row]
    folder: Path | None


class Watcher(Protocol):
    """Someone who is told how a run goes."""

    def started(self, config: Config, federation: Federation, done: int) -> None: ...

    def round(self, row: Row) -> None: ...


def run(
    config: Config | Mapping[str, Any] | str | Path | None = None, out: str | Path | None = None, *,
    resume: bool = False, watcher: Watcher | None = None,
) -> Result:  # fmt: skip
    """Run an experiment: a `Config`, a table of sections, or an experiment file; with `out`, write a run folder."""
    if not isinstance(config, Config):
        config = Config.of(config) if isinstance(config, Mapping) else Config.load(config)
    federation = Federation.of(config)
    federation.admit(config.method_name, config.method)
    folder = None if out is None else opened(Path(out), resume, config, federation)
    with one_thread():
        return Runner(config, federation, folder).go(watcher)


def opened(path: Path, resume: bool, config: Config, federation: Federation) -> Folder:
    """A new run folder, or with `resume` that of an earlier run of the same experiment."""
    partition = federation.describe()
    if not resume:
        return Folder.new(path, config.table(), partition)
    folder = Folder.old(path)
    if others := changed(Config.of(folder.config()).table(), config.table()):
        raise UserError(
            f"Resuming {path} can change run.rounds only, not {', '.join(others)}. Start a new run for that."
        )
    if folder.partition_hash() is None:
        folder.write_partition(partition)
    if folder.partition_hash() != partition["sha256"]:
        raise UserError(f"{path} was made with other data: its partition.json does not fit. Start a new run.")
    return folder


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The keys of two experiments that differ, run.rounds aside."""

    def keys(table: dict[str, Any]) -> dict[str, Any]:
        tables = {name: keys if isinstance(keys, dict) else {"*": keys} for name, keys in table.items()}
        return {f"{section}.{key}": value for section, keys in tables.items() for key, value in keys.items()}

    old, new = keys(before), keys(after)
    return sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key) and key != "run.rounds")


class Runner:
    """The state of a run between rounds."""

    def __init__(self, config: Config, federation: Federation, folder: Folder | None) -> None:
        self.config, self.federation, self.folder, self.method = config, federation, folder, config.method
        self.engine: Engine = ENGINES[config.engine.name](federation, config.method, config.train, config.run.seed)
        self.server = self.method.start(federation.server(config.run.seed, 0))
        self.rounds: list[Row] = []
        self.scores: list[Score] = []
        if folder:
            self.restore(folder)

    def restore(self, folder: Folder) -> None:
        """Continue after the last round whose state is whole, if there is one."""
        if state := checkpoint.latest(folder.checkpoints, self.method):
            done, self.server, kept = state
            self.engine.restore(kept)
            self.rounds = [self.as_if_uninterrupted(row) for row in folder.rounds()[:done]]
            if len(self.rounds) < done:
                raise UserError(
                    f"{folder.path / 'rounds.jsonl'} has {len(self.rounds)} whole lines for {done} rounds. "
                    "Start a new run."
                )
            if done > self.config.run.rounds:
                raise UserError(f"run.rounds: got {self.config.run.rounds}, but {folder.path} has {done} already.")
        folder.write_config(self.config.table())
        folder.write_rounds(self.rounds)
        if len(self.rounds) < self.config.run.rounds:
            folder.unfinish()

    def evaluates(self, number: int) -> bool:
        """Is round `number` (from 1) one whose clients are tested?"""
        return number % self.config.run.eval_every == 0 or number == self.config.run.rounds

    def as_if_uninterrupted(self, row: Row) -> Row:
        """A round that was tested only because it was to be the last one, without its test."""
        if self.evaluates(row["round"]):
            return row
        untested = {"accuracy_global": None, **self.accuracies()}
        measured = {key for key in row if key.startswith("accuracy_")}
        return {key: untested.get(key, row[key]) for key in row if key not in measured - untested.keys()}

    def go(self, watcher: Watcher | None) -> Result:
        """All rounds that are still to do, then the final figures."""
        if watcher:
            watcher.started(self.config, self.federation, len(self.rounds))
        for number in range(len(self.rounds), self.config.run.rounds):
            row = self.one_round(number)
            self.rounds.append(row)
            if self.folder:
                self.folder.add_round(row)
                checkpoint.store(self.folder.checkpoints, number + 1, self.server, self.engine.state())
            if watcher:
                watcher.round(row)
        if not self.scores:  # every round was done before
            self.scores = self.evaluate(self.config.run.rounds - 1)
        result = Result(self.summary(), self.rounds, self.client_rows(), self.folder.path if self.folder else None)
        if self.folder:
            self.folder.finish(result.summary, result.clients)
        return result

    def one_round(self, number: int) -> Row:
        """Sample, send, train, guard, aggregate, evaluate."""
        began = time.perf_counter()
        downs = {client: self.method.broadcast(self.server, client) for client in self.sample(number)}
        reports = sorted(self.engine.train(number, downs), key=lambda report: report.upload.client)
        uploads, rejected = sift([report.upload for report in reports])
        if uploads:
            self.server = self.method.aggregate(
                self.federation.server(self.config.run.seed, number), self.server, uploads
            )
        row: Row = {"round": number + 1, "loss": mean_terms(reports)}
        self.scores = self.evaluate(number) if self.evaluates(number + 1) else []
        row |= self.accuracies()
        row["accuracy_global"] = self.global_accuracy() if self.scores else None
        row["miou"] = None
        up, down = (
            sum(map(size, messages), Size())
            for messages in ([report.upload.message for report in reports], downs.values())
        )
        row |= {
            "up_params": up.params,
            "down_params": down.params,
            "up_counts": up.counts,
            "up_bytes": up.bytes,
            "down_bytes": down.bytes,
        }
        row |= {"clients": list(downs), "rejected": {str(client): reason for client, reason in rejected.items()}}
        return row | {"seconds": time.perf_counter() - began}

    def sample(self, number: int) -> list[int]:
        """The clients of a round, in order."""
        clients, wanted = len(self.federation), self.config.run.sample
        count = min(wanted, clients) if isinstance(wanted, int) else max(1, round(wanted * clients))
        site = self.federation.server(self.config.run.seed, number)
        return sorted(torch.randperm(clients, generator=site.generator("sample"))[:count].tolist())

    def evaluate(self, number: int) -> list[Score]:
        """Every client on its own test set, with what the server would send it now."""
        return self.engine.evaluate(
            number, {client: self.method.broadcast(self.server, client) for client in range(len(self.federation))}
        )

    @torch.no_grad()
    def global_accuracy(self) -> float | None:
        """The server's own model on the balanced test set, if there is such a model."""
        net, down, correct = self.federation.nets[0], self.method.broadcast(self.server, 0), None
        for x, y in self.federation.balanced.batches(EVALUATE):
            scores = self.method.predict_global(net, down, x)
            if "head" in scores:
                correct = (correct or 0) + hits(scores["head"], y)
        return None if correct is None else correct / len(self.federation.balanced)

    def ways(self) -> list[str]:
        """Every way to predict that the method has, the two standard ones first."""
        return list(dict.fromkeys(["head", "prototype", *(way for score in self.scores for way in score.correct)]))

    def spread(self, way: str) -> dict[str, float] | None:
        """Mean and standard deviation over clients of one way to predict."""
        having = [score for score in self.scores if way in score.correct]
        return over_clients(
            [score.correct[way] for score in having], [score.total for score in having], self.config.eval.reporting
        )

    def accuracies(self) -> Row:
        """The accuracies of a round, by way of predicting."""
        row: Row = {}
        for way in self.ways():
            spread = self.spread(way)
            row |= {f"accuracy_{way}": spread and spread["mean"], f"accuracy_{way}_std": spread and spread["std"]}
        return row

    def summary(self) -> Row:
        """The figures of result.json; null is what the method does not have."""

        def per_round(key: str) -> int:
            return round(float(sum(row[key] for row in self.rounds)) / len(self.rounds))

        seconds = sum(row["seconds"] for row in self.rounds)
        return {
            "method": self.config.method_name,
            "dataset": self.federation.dataset,
            "seed": self.config.run.seed,
            "rounds": len(self.rounds),
            "clients": len(self.federation),
            "accuracy": {way: self.spread(way) for way in self.ways()},
            "majority": self.federation.majority(),
            "global": {"accuracy": self.rounds[-1]["accuracy_global"]},
            "personal": {"v": None, "l": None, "all": None},
            "miou": {"mean": None, "per_class": None},
            "loss": self.rounds[-1]["loss"],
            "cost": {
                **{key: per_round(key) for key in ("up_params", "down_params", "up_counts")},
                **{key: sum(row[key] for row in self.rounds) for key in ("up_bytes", "down_bytes")},
            },
            "rejected": sum(len(row["rejected"]) for row in self.rounds),
            "seconds": {"total": seconds, "per_round": seconds / len(self.rounds)},
            "engine": self.config.engine.name,
            "versions": {
                "protofed": __version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }

    def client_rows(self) -> list[Row]:
        """The rows of clients.csv."""
        return [
            {
                "client": score.client,
                "net": self.federation.nets[score.client].name,
                "classes": " ".join(
                    str(label) for label in self.federation.train[score.client].labels.unique().tolist()
                ),
                "train": len(self.federation.train[score.client]),
                "test": score.total,
                **{
                    f"accuracy_{way}": score.correct[way] / score.total if way in score.correct else None
                    for way in self.ways()
                },
            }
            for score in self.scores
        ]


def mean_terms(reports: Sequence[Report]) -> dict[str, float]:
    """Each term of the loss, averaged over the examples that all clients saw."""
    seen = sum(report.seen for report in reports)
    names = dict.fromkeys(name for report in reports for name in report.terms)
    return {name: sum(report.terms.get(name, 0.0) for report in reports) / seen for name in names} if seen else {}


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread a process: faster for small nets, and the same sums everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
