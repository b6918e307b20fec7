"""A run: rounds, sampling, evaluation, checkpoints -> Result."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from protofed.engines.choice import compilable, engine, resolved
from protofed.engines.engine import Engine, Evaluation, RoundPlan, Split
from protofed.engines.scoring import tally
from protofed.engines.threads import one_thread
from protofed.errors import UserError
from protofed.experiment import checkpoint
from protofed.experiment.config import MAY_CHANGE, Config, changed_keys
from protofed.experiment.folder import Folder, uninterrupted
from protofed.experiment.members import Members
from protofed.experiment.personal import Personal, by_client
from protofed.experiment.results import (
    Result,
    RoundRow,
    State,
    accuracy_columns,
    client_rows,
    cost_columns,
    mean_terms,
    result_summary,
    spread,
    ways,
)
from protofed.experiment.roster import draw_roster
from protofed.experiment.tensorboard import TensorBoard, require_tensorboard
from protofed.messages import share_equal_messages
from protofed.trust.guard import sift

if TYPE_CHECKING:
    from protofed.experiment.federation import Federation


class Watcher(Protocol):
    """Someone who is told how a run goes."""

    def started(self, config: Config, members: Members, done: int, notes: Sequence[str]) -> None: ...

    def round(self, row: RoundRow) -> None: ...


def run(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
    federation: Federation | None = None,
) -> Result:
    """Run an experiment: a `Config`, a table of sections, or an experiment file; with `out`, write a run folder.

    A `federation` of own arrays takes the place of [data] and [partition], and of [net] if it has nets.
    """
    if resume and out is None:
        raise UserError("resume continues the run in `out`: give that folder.")
    if federation is not None and not hasattr(federation, "members"):
        raise UserError(f"federation: got a {type(federation).__name__}; must be a protofed.Federation.")
    if not isinstance(config, Config):
        config = Config.of(config) if isinstance(config, Mapping) else Config.load(config)
    config = federation.config(config) if federation else config
    members = federation.members(config) if federation else Members.of(config)
    members.admit(config.method_name, config.method)
    config = resolved(config.counted(len(members)), members)
    if config.run.tensorboard and out is not None:
        require_tensorboard()
    with one_thread(), opened(out, resume, config, members) as folder:
        runner = Runner(config, members, folder)
        try:
            return runner.go(watcher)
        finally:
            runner.close()


@contextmanager
def opened(out: str | Path | None, resume: bool, config: Config, members: Members) -> Iterator[Folder | None]:
    """A new run folder, or with `resume` that of an earlier run of the same experiment, locked; None without `out`."""
    if out is None:
        yield None
    elif not resume:
        with Folder.new(Path(out)) as folder:
            folder.write_config(config.table())
            folder.write_partition(members.describe())
            yield folder
    else:
        with Folder.old(Path(out)).locked() as folder:
            admit(folder, config, members.describe())
            yield folder


def admit(folder: Folder, config: Config, partition: dict[str, Any]) -> None:
    """Refuse to continue another experiment."""
    if others := changed_keys(Config.load(folder.path / "config.toml").table(), config.table()):
        raise UserError(
            f"Resuming {folder.path} can change only {', '.join(MAY_CHANGE[:-1])}, not {', '.join(others)}. "
            "Start a new run for that."
        )
    before = folder.partition()
    if before is None:
        folder.write_partition(partition)
    elif any(before.get(key) != partition[key] for key in ("sha256", "nets")):
        raise UserError(
            f"{folder.path} was made with other data or nets: its partition.json does not fit. Start a new run."
        )
    elif before.get("start") != partition["start"]:
        raise UserError(
            f"{folder.path} was begun with other weights than its nets start from now. Call torch.manual_seed before "
            "you make the nets, or give functions that make them; protofed.Result.load opens the run as it is."
        )


class Runner:
    """The state of a run between rounds."""

    def __init__(self, config: Config, members: Members, folder: Folder | None) -> None:
        self.config, self.members, self.folder, self.method = config, members, folder, config.method
        self.engine: Engine = engine(resolved(config, members), members)
        self.server = self.method.start(members.server(config.run.seed, 0))
        self.rounds: list[RoundRow] = []
        self.scores: list[Evaluation] = []
        self.board: TensorBoard | None = None
        self.last = {
            client: number
            for number in range(config.run.rounds)
            for client in draw_roster(config, members, number).clients
        }
        """the last round of each client that has one"""
        self.notes = list(members.notes)
        if config.engine.compile and not compilable(config):
            self.notes.append("engine.compile: there is no C++ compiler here, so steps run as they are")
        if config.run.trace_every and self.method.known(self.server) is None:
            self.notes.append(f"run.trace_every: {config.method_name} has no prototypes to keep a trace of")
        if folder:
            try:
                with uninterrupted():
                    self.restore(folder)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        self.engine.close()
        if self.board:
            self.board.close()

    def restore(self, folder: Folder) -> None:
        """Continue after the last round whose state is whole, if there is one."""
        if state := checkpoint.latest_checkpoint(folder.checkpoints, self.method, self.config.digest()):
            done, self.server, kept, damaged = state
            self.engine.restore(kept)
            if damaged:
                checkpoint.remove_checkpoints(folder.checkpoints, damaged)
                self.notes.append(f"damaged, and done again: checkpoint {', '.join(damaged)}")
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
        elif folder.rounds():
            raise UserError(f"{folder.checkpoints} is empty, though {folder.path} has rounds. Start a new run.")
        folder.checkpoints.mkdir(exist_ok=True)
        if len(self.rounds) < self.config.run.rounds:
            folder.unfinish()
        if every := self.config.run.trace_every:  # what was traced because it was to be the last round
            folder.untrace(n for n in folder.traced() if n >= len(self.rounds) and not self.due(n, every))
        folder.write_config(self.config.table())
        folder.write_rounds(self.rounds)
        if not self.rounds:  # so that there is always one to go back to
            self.store(folder)
        if self.config.run.tensorboard:
            self.board = TensorBoard(folder.path / "tensorboard", self.rounds)

    def store(self, folder: Folder) -> None:
        """Write the state as it is now."""
        checkpoint.write_checkpoint(
            folder.checkpoints, len(self.rounds), self.server, self.engine.state(), self.config.digest()
        )

    def due(self, number: int, every: int) -> bool:
        """Is what is done every so many rounds, and after the last one, done after round `number` (from 1)?"""
        return every > 0 and (number % every == 0 or number == self.config.run.rounds)

    def as_if_uninterrupted(self, row: RoundRow) -> RoundRow:
        """A round that was tested only because it was to be the last one, without its test."""
        if asked := row.get("personal"):
            now = {str(client) for client in self.examined(row["round"] - 1)}
            row = {**row, "personal": {client: hits for client, hits in asked.items() if client in now}}
        if self.due(row["round"], self.config.run.eval_every):
            return row
        untested = {"accuracy_global": None, **accuracy_columns([], self.config.eval.reporting)}
        measured = {key for key in row if key.startswith(("accuracy_", "validation_"))}
        return {key: untested.get(key, row[key]) for key in row if key not in measured - untested.keys()}

    def go(self, watcher: Watcher | None) -> Result:
        """All rounds that are still to do, then the final figures."""
        if watcher:
            watcher.started(self.config, self.members, len(self.rounds), self.notes)
        for number in range(len(self.rounds), self.config.run.rounds):
            row = self.one_round(number)
            self.rounds.append(row)
            if self.folder:
                with uninterrupted():
                    self.folder.add_round(row)
                    if self.board:
                        self.board.add(row)
                    if self.due(number + 1, self.config.run.trace_every) and (own := self.method.known(self.server)):
                        self.folder.write_trace(number + 1, own)
                    if self.due(number + 1, self.config.run.checkpoint_every):
                        self.store(self.folder)
            if watcher:
                watcher.round(row)
        if not self.scores:  # every round was done before
            self.scores = self.evaluate(self.config.run.rounds - 1)
        state = State(self.config, self.members, self.server, dict(self.engine.state()))
        result = Result(
            result_summary(self.config, self.members, self.rounds, self.scores, personal := self.personal()),
            self.rounds,
            client_rows(self.members, self.scores, personal),
            self.folder.path if self.folder else None,
            state,
            state.reach() if any("prototype" in score.correct for score in self.scores) else {},
        )
        if self.folder:
            with uninterrupted():
                self.folder.finish(result.summary, result.clients, result.reach)
        return result

    def one_round(self, number: int) -> RoundRow:
        """Sample, send, train, guard, aggregate, evaluate."""
        began = time.perf_counter()
        sampled, clients, slow = draw_roster(self.config, self.members, number)
        downs = self.messages(sampled)
        asked = RoundPlan(self.examined(number), slow)
        trained = self.engine.train(number, {client: downs[client] for client in clients}, asked)
        reports = sorted(trained, key=lambda report: report.upload.client)
        uploads, rejected = sift([report.upload for report in reports])
        if uploads:
            self.server = self.method.aggregate(self.members.server(self.config.run.seed, number), self.server, uploads)
        row: RoundRow = {
            "round": number + 1,
            "loss": mean_terms(reports),
            **(self.method.noted(self.server) if uploads else {}),
        }
        self.scores = self.evaluate(number) if self.due(number + 1, self.config.run.eval_every) else []
        row |= accuracy_columns(self.scores, self.config.eval.reporting)
        row |= self.validated(number) if self.scores else {}
        row |= self.global_accuracies() if self.scores else {"accuracy_global": None}
        row["miou"] = None
        if self.config.eval.personal:
            row["personal"] = {str(report.upload.client): report.hits for report in reports if report.hits}
        row |= cost_columns([report.upload.message for report in reports], downs.values())
        if self.config.system.slow:
            row["slow"] = {str(client): done for client, done in slow.items()}
            row["late"] = [client for client in sampled if client not in clients]
        row |= {"clients": clients, "rejected": {str(client): reason for client, reason in rejected.items()}}
        return row | {"seconds": time.perf_counter() - began}

    def messages(self, clients: Iterable[int]) -> dict[int, Any]:
        """What the server sends now; equal messages are one object, so that engines send and stack them once."""
        return share_equal_messages({client: self.method.broadcast(self.server, client) for client in clients})

    def evaluate(self, number: int, on: Split = "test") -> list[Evaluation]:
        """Every client on its own test or validation set, with what the server would send it now."""
        return self.engine.evaluate(number, self.messages(range(len(self.members))), on)

    def examined(self, number: int) -> set[int]:
        """Whose model is scored on the balanced test set after this round's training: it stays the latest one."""
        scoring, last = self.config.eval, self.config.run.rounds - 1
        if not scoring.personal or self.method.tune(self.config.train.epochs):  # tuned models are made at the end
            return set()
        if scoring.clients == "round" and number < last:
            return set()
        return {client for client, final in self.last.items() if final == number}

    def personal(self) -> Personal:
        """The accuracies of personal models, by way to predict and client."""
        if not self.config.eval.personal:
            return {}
        found = {int(client): hits for row in self.rounds for client, hits in row["personal"].items()}
        last = self.config.run.rounds - 1
        wanted = (
            range(len(self.members))
            if self.config.eval.clients == "all"
            else draw_roster(self.config, self.members, last).clients
        )
        found |= self.engine.examine(last, self.messages([client for client in wanted if client not in found]))
        return by_client(found, self.members.train, self.members.balanced, len(self.members.labels))

    def validated(self, number: int) -> RoundRow:
        """The mean accuracies on the clients' validation sets, if they have any."""
        if not self.members.validation:
            return {}
        scores, reporting = self.evaluate(number, "validation"), self.config.eval.reporting
        return {f"validation_{way}": over["mean"] for way in ways(scores) if (over := spread(scores, way, reporting))}

    def global_accuracies(self) -> RoundRow:
        """The server's own model on the balanced test set, if there is such a model: by head, and by other ways."""
        answer = partial(self.method.predict_global, self.members.nets[0], self.server)
        found = [tally(answer, part) for part in self.members.balanced]
        total = sum(map(len, self.members.balanced))
        right = {
            way: sum(one[way] for one in found if one) / total
            for way in dict.fromkeys(key for one in found for key in one)
        }
        others = {f"accuracy_global_{way}": share for way, share in right.items() if way != "head"}
        return {"accuracy_global": right.get("head"), **others}
