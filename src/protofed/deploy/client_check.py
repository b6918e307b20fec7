"""Whether clients can work with the files in their folders, before their processes start."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def check_client_files(folders: Iterable[Path]) -> None:
    """Raise an error for settings, a policy or data that a client could not work with.

    A client reads them for every message, so that without this check a damaged file is noticed in the first round. The
    check has a process of its own, because it needs torch, and a supervisor should stay small.
    """
    with ProcessPoolExecutor(1) as pool:
        for _ in pool.map(_read_files, folders):
            pass


def _read_files(folder: Path) -> None:
    from protofed.deploy.client_work import ClientWork

    ClientWork(folder).data()
