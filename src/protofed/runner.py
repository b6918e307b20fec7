"""A run: rounds, sampling, evaluation, checkpoints -> Result."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from protofed import checkpoint
from protofed.config import Config
from protofed.engines import ENGINES
from protofed.engines.engine import Engine, Score
from protofed.errors import UserError
from protofed.federation import Federation
from protofed.folder import Folder
from protofed.measures.accuracy import hits
from protofed.messages import Size, size
from protofed.net import EVALUATE
from protofed.results import Result, Row, accuracies, client_rows, mean_terms, summary
from protofed.trust.guard import sift


class Watcher(Protocol):
    """Someone who is told how a run goes."""

    def started(self, config: Config, federation: Federation, done: int) -> None: ...

    def round(self, row: Row) -> None: ...


def run(
    config: Config | Mapping[str, Any] | str | Path | None = None, out: str | Path | None = None, *,
    resume: bool = False, watcher: Watcher | None = None,
) -> Result:  # fmt: skip
    """Run an experiment: a `Config`, a table of sections, or an experiment file; with `out`, write a run folder."""
    if resume and out is None:
        raise UserError("resume continues the run in `out`: give that folder.")
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
    if others := changed(Config.load(path / "config.toml").table(), config.table()):
        raise UserError(
            f"Resuming {path} can change run.rounds only, not {', '.join(others)}. Start a new run for that."
        )
    if folder.partition_hash() is None:
        folder.write_partition(partition)
    if folder.partition_hash() != partition["sha256"]:
        raise UserError(f"{path} was made with other data: its partition.json does not fit. Start a new run.")
    return folder


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What differs between two experiments, run.rounds aside: keys, or whole sections where another thing is named."""
    different = []
    for section, old in before.items():
        new = after[section]
        if isinstance(old, list) or isinstance(new, list) or old.get("name") != new.get("name"):
            different += [section] if repr(old) != repr(new) else []  # repr: 1 client a round is not the share 1.0
        else:
            different += [f"{section}.{key}" for key in old if repr(old[key]) != repr(new[key])]
    return [key for key in different if key != "run.rounds"]


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
        if state := checkpoint.latest(folder.checkpoints, self.method, self.config.digest()):
            done, self.server, kept = state
            self.engine.restore(kept)
            self.rounds = [self.as_if_uninterrupted(row) for row in folder.rounds()[:done]]
            if len(self.rounds) < done:
                raise UserError(
                    f"{folder.path / 'rounds.jsonl'} has {len(self.rounds)} whole lines for {done} rounds. "
                    "Start a new run."
                )
            if done > self.config.run.rounds:
                raise UserError(
                    f"run.rounds: got {self.config.run.rounds}, but {folder.path} has {done}. Use {done} or more."
                )
        elif len(folder.rounds()) > 1:
            raise UserError(f"{folder.checkpoints} is empty, though {folder.path} has rounds. Start a new run.")
        folder.checkpoints.mkdir(exist_ok=True)
        folder.write_config(self.config.table())
        folder.write_rounds(self.rounds)

    def evaluates(self, number: int) -> bool:
        """Is round `number` (from 1) one whose clients are tested?"""
        return number % self.config.run.eval_every == 0 or number == self.config.run.rounds

    def as_if_uninterrupted(self, row: Row) -> Row:
        """A round that was tested only because it was to be the last one, without its test."""
        if self.evaluates(row["round"]):
            return row
        untested = {"accuracy_global": None, **accuracies([], self.config.eval.reporting)}
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
                self.folder.unfinish()
                self.folder.add_round(row)
                checkpoint.store(
                    self.folder.checkpoints, number + 1, self.server, self.engine.state(), self.config.digest()
                )
            if watcher:
                watcher.round(row)
        if not self.scores:  # every round was done before
            self.scores = self.evaluate(self.config.run.rounds - 1)
        result = Result(
            summary(self.config, self.federation, self.rounds, self.scores),
            self.rounds,
            client_rows(self.federation, self.scores),
            self.folder.path if self.folder else None,
        )
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
        row |= accuracies(self.scores, self.config.eval.reporting)
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


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread a process: faster for small nets, and the same sums everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
