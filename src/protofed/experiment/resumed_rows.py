"""The rows of a run that is continued, as an uninterrupted run would have them."""

from __future__ import annotations

from collections.abc import Callable, Collection

from protofed.experiment.config import Config
from protofed.experiment.results import RoundRow, accuracy_columns


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
