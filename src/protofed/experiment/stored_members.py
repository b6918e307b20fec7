"""The members of a stored run with their data, which a run folder does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protofed.errors import UserError
from protofed.experiment.config import Config
from protofed.experiment.folder import Folder
from protofed.experiment.members import Members
from protofed.experiment.stored import GIVEN


def members_with_data(config: Config, folder: Path | None, nets: Sequence[Any] | None = None) -> Members:
    """The members of a run with their data, which a run folder does not hold. They must match its partition.json.

    `nets`: those that were given in Python.
    """
    members = Members.of(config, nets=nets)
    if folder and members.describe()["sha256"] != (Folder(folder).partition() or {}).get("sha256"):
        raise UserError(
            f"{folder} was run on other data than those found now: its partition.json does not match them. "
            "Restore the data of the run."
        )
    return members


def with_data(members: Members, config: Config, folder: Path) -> Members:
    """The members of a run with their data, from which the states of clients that never trained follow."""
    if any(len(examples) for examples in members.train):
        return members
    if config.data.name == GIVEN:
        raise UserError(
            "A client that never trained has the model that follows from its data, and these were given in Python. "
            "Give them: protofed.Result.load(folder, federation=...)."
        )
    given = any(choice.name == GIVEN for choice in config.nets)
    return members_with_data(config, folder, members.nets if given else None)
