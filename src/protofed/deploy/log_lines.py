"""Log files: new lines as they are written, and the lines that a person wants to read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

OWN_LINE = "protofed: "
"""What the lines of the client app begin with, among those of Flower."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TROUBLE = re.compile(r"^(WARNING|ERROR|CRITICAL)\s*:\s*(.*)")
_EXPECTED = (
    "Option `--insecure` was set",
    "SuperNode authentication is disabled",
    "Connection attempt failed",
    "Exit Code: ",
)
"""Warnings of Flower about what a deployment does on purpose, or that it reports in its own words."""
_REFUSED = "[/v1/fleet/activate-node][ApiError:2004]"


class LogTail:
    """The complete lines that were added to a log file since the last look."""

    def __init__(self, path: Path, from_start: bool = False) -> None:
        self.path = path
        self.position = 0 if from_start or not path.exists() else path.stat().st_size

    def new_lines(self) -> Iterator[str]:
        """The new lines, without colours."""
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self.position:
                    self.position = 0  # the file was emptied
                file.seek(self.position)
                content = file.read()
        except FileNotFoundError:
            return
        complete = content[: content.rfind(b"\n") + 1]
        self.position += len(complete)
        for line in complete.decode(errors="replace").splitlines():
            yield plain_line(line)


def plain_line(line: str) -> str:
    """A line without colours.

    >>> plain_line("\\x1b[92mINFO \\x1b[0m:      Starting")
    'INFO :      Starting'
    """
    return _COLOUR.sub("", line).rstrip()


def readable_line(line: str) -> str | None:
    """A line of Flower's log as a person wants to read it: our own ones, warnings and errors; None for the rest.

    >>> readable_line("protofed: round 3: sent 640 bytes")
    'round 3: sent 640 bytes'
    >>> readable_line("ERROR :     connection lost")
    'Flower: connection lost'
    >>> readable_line("INFO :      [Fleet.GetRun] Requesting")
    """
    if line.startswith(OWN_LINE):
        return line.removeprefix(OWN_LINE)
    if _REFUSED in line:
        return "refused a client: its key is not known, or an earlier process of it still counts as connected"
    if (trouble := _TROUBLE.match(line)) and not trouble[2].startswith(_EXPECTED):
        return f"Flower: {trouble[2]}"
    return None


def log_files(part: Path) -> list[Path]:
    """The log files of a server or client: our own lines, then Flower's."""
    return [path for name in ("server.log", "client.log", "logs/flower.log") if (path := part / name).is_file()]
