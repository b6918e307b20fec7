"""A run: rounds, sampling, evaluation and checkpoints, up to the result."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any

from protofed.contract import checked, require_equal_uploads
from protofed.engines.engine import Engine, Evaluation, RoundPlan, Split
from protofed.errors import UserError
from protofed.experiment.bounds.monitor import BoundsMonitor, why_not_monitored
from protofed.experiment.checkpoint import Checkpoints, recovery_notes
from protofed.experiment.config import Config
from protofed.experiment.divergence import all_rejected, has_uploads, nobody_answered, pull_warning
from protofed.experiment.final_figures import client_rows, result_summary
from protofed.experiment.folder import Folder, uninterrupted
from protofed.experiment.held_uploads import HeldUploads
from protofed.experiment.kept_states import GIGABYTE, states_of_all
from protofed.experiment.local_engine import make_local_engine
from protofed.experiment.members import Members
from protofed.experiment.own_code import with_relative_paths
from protofed.experiment.personal import Personal, accuracies_by_client
from protofed.experiment.pixels import overlap_columns
from protofed.experiment.results import (
    Result,
    RoundRow,
    State,
    accuracy_columns,
    cost_columns,
    mean_terms,
    validation_columns,
)
from protofed.experiment.resumed_rows import as_if_uninterrupted, require_continuable
from protofed.experiment.roster import clients_to_test, draw_roster
from protofed.experiment.safeguards import Safeguards, attack_summary
from protofed.experiment.sections import is_due
from protofed.experiment.server_model import server_columns, server_predictor
from protofed.experiment.stop_request import was_asked_to_stop
from protofed.experiment.stored import was_tested
from protofed.experiment.trackers import WATCHERS
from protofed.experiment.watchers import Watcher, pass_warning, progress_reporter
from protofed.messages import share_equal_messages
from protofed.plugins import label
from protofed.prototypes import Prototypes


class Runner:
    """The state of a run between rounds. Without an `engine`, `config` must name one: see `run.resolve_engine`."""

    def __init__(
        self,
        config: Config,
        members: Members,
        folder: Folder | None,
        watchers: Sequence[Watcher] = (),
        engine: Engine | None = None,
    ) -> None:
        self.config, self.members, self.folder, self.method = config, members, folder, config.method
        self.tested = clients_to_test(config, len(members))
        self.server = checked(self.method, "start", self.method.start(members.server(config.run.seed, 0)))
        self.rounds: list[RoundRow] = []
        self.evaluations: list[Evaluation] = []
        self.watchers, self.has_watchers = list(watchers), bool(watchers)
        self.safeguards = Safeguards(config, members)
        self.notes = [*members.notes, *self.safeguards.notes()]
        self.warning, self.asked_to_stop = "", False
        if config.run.trace_every and self.server_prototypes() is None:
            self.notes.append(f"run.trace_every: {label(config.method_name)} has no prototypes to write to trace/")
        if folder:
            self.watchers += [WATCHERS.find(name)[1](folder.path) for name in config.run.all_watchers()]
        if config.run.monitor and (reason := why_not_monitored(config, folder)):
            self.notes.append(f"run.monitor: {reason}")
        elif folder and config.run.monitor:
            self.watchers.append(BoundsMonitor(self, config.run.monitor, folder.path))
        self.engine = engine or make_local_engine(config, self.safeguards.members)
        where, budget = folder.checkpoints if folder else None, config.engine.memory * GIGABYTE
        self.checkpoints = Checkpoints(where, self.method, config.digest(), budget)
        self.engine.restore(self.checkpoints.kept)

    def close(self) -> None:
        """Release the engine, then the watchers and the database, even if one of them fails."""
        with ExitStack() as stack:
            stack.callback(self.checkpoints.close)
            for watcher in reversed(self.watchers):
                stack.callback(watcher.closed)
            stack.callback(self.engine.close)

    def start(self) -> None:
        """Write the state before the first round, so that there always is one to resume from."""
        if self.folder:
            self.checkpoints.start()
            self._write_checkpoint()
            self.folder.write_rounds([])

    def resume(self) -> None:
        """Continue after the last round whose checkpoint is intact."""
        folder = self.folder
        assert folder is not None
        checkpoint = self.checkpoints.latest()
        written = folder.rounds(up_to_damage=True)
        if checkpoint is None and written:
            raise UserError(f"{folder.checkpoints} is empty, but {folder.path} has rounds. Start a new run.")
        done, run = checkpoint.rounds if checkpoint else 0, self.config.run
        rows = checkpoint.rows if checkpoint and checkpoint.rows is not None else written[:done]
        require_continuable(self.config, folder.path, rows, done, self._examined)
        if checkpoint:
            self.notes += recovery_notes(checkpoint, len(written), run.checkpoint_every)
            self.server = checkpoint.server
            self.checkpoints.resume(checkpoint, rows)
            self.engine.restore(self.checkpoints.kept)
        over = self._is_over(rows)
        self.rounds = [
            as_if_uninterrupted(self.config, row, over and row["round"] == done, self._examined) for row in rows
        ]
        if not over:
            folder.remove_results()
        if every := run.trace_every:  # traces that were written because the round was to be the last
            untraced = (n for n in folder.traced_rounds() if not is_due(n, every, over and n == done))
            folder.remove_traces(n for n in untraced if n >= done)
        folder.write_config(with_relative_paths(self.config.table(), folder.path))
        folder.write_rounds(self.rounds)
        if checkpoint is None:  # the run was stopped before its first checkpoint
            self.start()

    def _write_checkpoint(self) -> None:
        self.checkpoints.write(self.server, self.rounds, self.config.run.keep_checkpoints, self.engine.state())

    def _is_over(self, rows: Sequence[RoundRow]) -> bool:
        """Whether the run ends after these rounds."""
        return self.config.run.is_over(len(rows), sum(row["seconds"] for row in rows))

    def go(self) -> Result:
        """Do the remaining rounds, then compute the final figures."""
        for watcher in self.watchers:
            watcher.started(self.config, self.members, tuple(self.rounds), tuple(self.notes))
        while not self._is_over(self.rounds):
            row = self.one_round(len(self.rounds))
            self.rounds.append(row)
            if self.folder:
                with uninterrupted():
                    self._write_round(self.folder, row)
            for watcher in self.watchers:
                watcher.round(row)
            self._warn()
            if self.asked_to_stop:
                raise KeyboardInterrupt
        if not self.evaluations:  # every round was done before
            self._test_last_round(len(self.rounds) - 1)
        result = self._result()
        if self.folder:
            with uninterrupted():
                self.folder.write_results(result.summary, result.clients, result.unknown)
        for watcher in self.watchers:
            watcher.finished(result)
        return result

    def _warn(self) -> None:
        """The first time that something goes wrong, pass it to the watchers, or to Python if the caller has none."""
        pull = "" if self.warning else pull_warning(self.config, self.rounds[-2:])
        self.warning = self.warning or pull
        for text in filter(None, (pull, self.safeguards.warning())):
            pass_warning(text, self.watchers, self.has_watchers)

    def _write_round(self, folder: Folder, row: RoundRow) -> None:
        run, over = self.config.run, self._is_over(self.rounds)
        self._write_trace(folder, row["round"])
        if is_due(row["round"], run.checkpoint_every, over):
            self._write_checkpoint()
            self.asked_to_stop = was_asked_to_stop(folder.path) and not over
        folder.add_round(row)  # after the checkpoint, which has the row, too: a row without one was never lost

    def _write_trace(self, folder: Folder, rounds: int) -> None:
        """Write the server's prototypes after this number of rounds, if they are due."""
        due = is_due(rounds, self.config.run.trace_every, self._is_over(self.rounds))
        if due and (prototypes := self.server_prototypes()):
            folder.write_trace(rounds, prototypes)

    def _result(self) -> Result:
        config = self.config.with_rounds(len(self.rounds))
        kept = states_of_all(config, len(self.members), self.engine.state(), lambda: self.members)
        state = State(config, self.members, self.server, kept)
        personal = self.personal()
        calibrations = state.calibrations()
        summary = result_summary(self.config, self.members, self.rounds, self.evaluations, personal, calibrations)
        return Result(
            summary | attack_summary(self.safeguards.attackers, state, self.evaluations),
            self.rounds,
            client_rows(self.members, self.evaluations, personal, state.temperatures()),
            self.folder.path if self.folder else None,
            state,
            {str(client): calibration.as_json() for client, calibration in calibrations.items()},
        )

    def one_round(self, number: int) -> RoundRow:
        """Sample, send, train, check, aggregate, evaluate."""
        began = time.perf_counter()
        roster = draw_roster(self.config, self.members, number)
        downs = self._messages(roster.sampled)
        plan = RoundPlan(self._examined(number), roster.slow)
        self.engine.on_trained = progress_reporter(self.watchers, number + 1, len(roster.clients))
        self.engine.hold = HeldUploads(self.method.types()["up"], self.config.engine.memory * GIGABYTE).hold
        reports = self.engine.train(number, {client: downs[client] for client in roster.clients}, plan)
        reports = self.safeguards.corrupt(number, reports, downs)
        require_equal_uploads(self.method, [report.upload for report in reports])
        uploads, rejected = self.safeguards.sift(number, reports)
        usable = [report for report in reports if report.upload.client not in rejected]
        row: RoundRow = {"round": number + 1, "loss": mean_terms(usable or reports)}
        if rejected and not uploads and not self.engine.failures and not self.config.trust.quorum:
            raise all_rejected(self.config, [*self.rounds[-1:], row], rejected, self.folder)
        in_the_open = not self.config.privacy.secure_sum  # secure sums have rules of their own for lost clients
        if not reports and self.engine.failures and in_the_open and not any(map(has_uploads, self.rounds)):
            raise nobody_answered(number + 1, self.engine.failures)
        rejected = dict(sorted({**self.engine.failures, **rejected}.items()))
        uploads = self.safeguards.above_quorum(uploads, len(roster.sampled))
        if seen := self.safeguards.seen_by_server(number, uploads, roster.clients):
            self.server = checked(self.method, "aggregate", self.safeguards.aggregate(number, self.server, seen))
            row |= self.method.log_entries(self.server)
        run, spent = self.config.run, [*(row["seconds"] for row in self.rounds), time.perf_counter() - began]
        tests_now = run.is_tested(number + 1, run.is_over(number + 1, sum(spent)))
        self.evaluations = self._evaluate(number) if tests_now else []
        row |= self._columns_of_test(number)
        if self.config.eval.personal:
            row["personal"] = {str(report.upload.client): report.hits for report in reports if report.hits}
        row |= cost_columns(self.safeguards.secure.sent_messages(reports, rejected), downs.values())
        row |= roster.columns_of_slow_clients() if self.config.system.slow else {}
        row |= self.safeguards.columns(self.evaluations)
        row["clients"] = roster.clients
        row["rejected"] = {str(client): reason for client, reason in rejected.items()}
        return row | {"seconds": time.perf_counter() - began if tests_now else spent[-1]}

    def _columns_of_test(self, number: int) -> RoundRow:
        """The columns of a round about its test; they are null if it was not tested."""
        reporting = self.config.eval.reporting
        row = accuracy_columns(self.evaluations, reporting) | overlap_columns(self.evaluations)
        if self.evaluations and self.members.validation:
            row |= validation_columns(self._evaluate(number, "validation"), reporting)
        row |= self._server_columns() if self.evaluations else {"accuracy_global": None}
        row.setdefault("miou", None)
        return row

    def _test_last_round(self, number: int) -> None:
        """Test the last round, which was done before. If it was not to be the last, it gets now what a last one has."""
        self.evaluations, row = self._evaluate(number), self.rounds[-1]
        if not was_tested(row):
            self.rounds[-1] = row | self._columns_of_test(number) | self.safeguards.honest(self.evaluations)
        if self.folder:
            with uninterrupted():
                self._write_trace(self.folder, number + 1)
                self.folder.write_rounds(self.rounds)

    def _server_columns(self) -> RoundRow:
        """The columns of a tested round about the server's own model."""
        predict = server_predictor(self.method, self.members, self.server)
        return server_columns(predict, self.members, self.config.eval.training_loss, self.tested)

    def server_prototypes(self) -> Prototypes | None:
        """The server's prototypes, if the method has them."""
        return self.method.server_prototypes(self.members.nets[0], self.server)

    def _messages(self, clients: Iterable[int]) -> dict[int, Any]:
        """What the server sends now. Equal messages are one object, so that engines send and stack them once."""
        messages = ((client, self.method.broadcast(self.server, client)) for client in clients)
        return share_equal_messages({client: checked(self.method, "broadcast", down) for client, down in messages})

    def _evaluate(self, number: int, on: Split = "test") -> list[Evaluation]:
        """The tested clients on their own test or validation sets, with the message that they would get now."""
        return self.engine.evaluate(number, self._messages(self.tested), on)

    @cached_property
    def _last_rounds(self) -> dict[int, int]:
        """The last round of each tested client that takes part in one. Only scores of personal models need it."""
        config, members, tested = self.config, self.members, set(self.tested)
        rosters = ((number, draw_roster(config, members, number)) for number in range(config.run.rounds))
        return {client: number for number, roster in rosters for client in roster.clients if client in tested}

    def _examined(self, number: int) -> set[int]:
        """Clients whose last training is this round: their final personal model is scored now."""
        scoring, last = self.config.eval, self.config.run.rounds - 1
        if not scoring.personal or self.method.tune(self.config.train.epochs):  # tuned models are made at the end
            return set()
        if scoring.clients == "round" and number < last:
            return set()
        return {client for client, final in self._last_rounds.items() if final == number}

    def personal(self) -> Personal:
        """The accuracies of personal models, per way of predicting and client."""
        if not self.config.eval.personal:
            return {}
        hits = {int(client): hits for row in self.rounds for client, hits in row["personal"].items()}
        last = self.config.run.rounds - 1
        if self.config.eval.clients == "all":
            wanted = list(self.tested)
        else:
            wanted = sorted(set(self.tested) & set(draw_roster(self.config, self.members, last).clients))
        hits |= self.engine.examine(last, self._messages([client for client in wanted if client not in hits]))
        return accuracies_by_client(hits, self.members.train, self.members.balanced, len(self.members.labels))
