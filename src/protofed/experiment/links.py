"""Symbolic links in run folders, which may be somebody else's: writing and deleting must stay inside the folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protofed.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


def refuse_links(folder: Path, *names: str) -> None:
    """Raise an error if one of these files or folders, in which files are written and deleted, is a symbolic link."""
    for name in names:
        if (folder / name).is_symlink():
            raise UserError(
                f"{folder / name} is a symbolic link, which is not followed. Replace the link by the files themselves."
            )


def remove_link(path: Path) -> None:
    """Delete a symbolic link, so that writing to the path does not overwrite the file that the link leads to."""
    if path.is_symlink() and not path.is_char_device():
        path.unlink()
