"""The rows of a run that is continued, as an uninterrupted run would have them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from protofed.errors import UserError
from protofed.experiment.config import Config
from protofed.experiment.results import RoundRow, accuracy_columns
from protofed.experiment.stored import read_settings


def as_if_uninterrupted(
    config: Config, row: RoundRow, last: bool, examined: Callable[[int], Collection[int]]
) -> RoundRow:
    """A row without the test that was made only because its round was to be the last.

    `examined`: the clients whose final personal models are scored in a round (from 0).
    """
    if personal := row.get("personal"):
        clients = {str(client) for client in examined(row["round"] - 1)}
        row = {**row, "personal": {client: hits for client, hits in personal.items() if client in clients}}
    if config.run.is_tested(row["round"], last):
        return row
    untested = {"accuracy_global": None, "miou": None, "honest": {}, **accuracy_columns([], config.eval.reporting)}
    measured = {key for key in row if key.startswith(("accuracy_", "validation_", "loss_", "miou", "iou"))}
    return {key: untested.get(key, row[key]) for key in row if key not in measured - untested.keys()}


def require_continuable(
    config: Config, folder: Path, rows: Sequence[RoundRow], done: int, examined: Callable[[int], Collection[int]]
) -> None:
    """Raise an error if a run with these rows cannot go on after `done` rounds with its run.rounds and run.seconds.

    `examined`: as above.
    """
    run, seconds = config.run, sum(row["seconds"] for row in rows[:-1])
    if len(rows) < done:
        raise UserError(f"{folder / 'rounds.jsonl'} has {len(rows)} complete lines for {done} rounds. Start a new run.")
    if done > run.rounds:
        raise UserError(f"run.rounds: got {run.rounds}, but {folder} has {done}. Use {done} or more.")
    if done and run.is_over(done - 1, seconds):
        raise UserError(
            f"run.seconds: got {run.seconds:g}, but the rounds before the last one in {folder} took "
            f"{seconds:.1f} s. Use more than that, or 0 for no limit."
        )
    if run.eval_last:
        _require_tests_of_last_rounds(config, folder, rows[:done])
    if config.eval.personal:
        _require_personal_scores(config, folder, rows, examined)


def _require_tests_of_last_rounds(config: Config, folder: Path, rows: Sequence[RoundRow]) -> None:
    """Raise an error if the run has fewer rounds than before, so that a round that is over should have been tested."""
    run, before = config.run, replace(config.run, rounds=read_settings(folder / "config.toml")["run"]["rounds"])
    due = [number for row in rows if (number := row["round"]) < run.rounds and run.is_tested(number, False)]
    if untested := [number for number in due if not before.is_tested(number, False)]:
        raise UserError(
            f"run.rounds: got {run.rounds}, but run.eval_last tests the last {run.eval_last} rounds. Round "
            f"{untested[0]} is over, and was not tested, because the run was to have {before.rounds} rounds. Use "
            f"{before.rounds} or more."
        )


def _require_personal_scores(
    config: Config, folder: Path, rows: Sequence[RoundRow], examined: Callable[[int], Collection[int]]
) -> None:
    """Raise an error if the run has fewer rounds than before, and a model was to be scored in a round already done.

    Such a model is lost: a client keeps only what its next round starts from.
    """
    scored = {client for row in rows for client in row["personal"]}
    missing = [client for row in rows for client in examined(row["round"] - 1) if str(client) not in scored]
    if missing and config.run.rounds < (before := read_settings(folder / "config.toml")["run"]["rounds"]):
        raise UserError(
            f"run.rounds: got {config.run.rounds}, but eval.personal scores a client's model in the last round that "
            f"the client takes part in. That of client {min(missing)} is over, and its model was not scored, because "
            f"the run was to have {before} rounds. Use {before} or more."
        )
