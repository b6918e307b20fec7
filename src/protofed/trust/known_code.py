"""Whether code that a run folder names may be run.

A run folder may come from somebody else, and it may bring the code that its config.toml names. So that code is run only
if the user has run the very same file at the same place before, by naming it herself, or if she says so
(`--trust-code`). What she has run is kept as a list in her own configuration folder, which no run folder can write to.
The place counts, because a file imports the files next to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from protofed.errors import UserError
from protofed.plugins import Registry, absolute_name, file_hash, installed, label, name_without_folder, source_file


class UnknownCodeError(UserError):
    """Code that may not be run."""


_TRUSTING: ContextVar[bool] = ContextVar("trusting", default=False)
WITHOUT_CODE = (
    "Commands that only read numbers need no code: compare, runs, and draw --what curves, losses, cost or clients."
)


@contextmanager
def trusting(yes: bool = True) -> Iterator[None]:
    """Inside this block, the code that run folders name is run without further questions."""
    token = _TRUSTING.set(yes or _TRUSTING.get())
    try:
        yield
    finally:
        _TRUSTING.reset(token)


def is_trusting() -> bool:
    """Whether the code that run folders name is run without further questions here."""
    return _TRUSTING.get()


def known_files() -> Path:
    """The list of the files that the user has run: a line per file, with its sha256 and its path."""
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "protofed" / "known-code.txt"


def remember(files: Iterable[tuple[str, str]]) -> None:
    """Add files, each as its sha256 and its path, to the list of those that the user has run."""
    path, known = known_files(), _known()
    lines = [f"{sha256}  {file}\n" for sha256, file in dict.fromkeys(files) if sha256 and (sha256, file) not in known]
    if lines:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as list_of_files:
                list_of_files.writelines(lines)
        except OSError:  # a home that cannot be written to: --trust-code will be asked for
            return


def _known() -> set[tuple[str, str]]:
    """The sha256 and the path of each file that the user has run."""
    try:
        lines = known_files().read_text(encoding="utf-8").splitlines()
        return {(sha256, file) for sha256, _, file in (line.partition("  ") for line in lines)}
    except (OSError, UnicodeDecodeError):
        return set()


def require_known(
    folder: Path, names: Iterable[tuple[Registry[Any], str]], recorded: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raise an error if a run folder names code that may not be run. Nothing is imported to find out.

    `names`: the names in its config.toml that are not the package's. `recorded`: its code.json, where each came from.
    """
    for registry, written in names:
        name = absolute_name(written, Path.cwd())  # as it is when the code is run
        record = recorded.get(name_without_folder(name), {})
        file, short = source_file(registry.group, name), label(name)
        if file is None:
            if not record:
                continue  # an unknown name, about which the experiment's own check says more
            origin = record["file"] or "an interactive session"
            raise UnknownCodeError(
                f"{folder} was run with {short} from {origin} (sha256 {record['sha256'][:12]}), which is not there "
                f"now. Put it back. {WITHOUT_CODE}"
            )
        if is_trusting():
            continue
        digest, was = file_hash(file), record.get("sha256", "")
        if was and was != digest:
            raise UnknownCodeError(
                f"{file} has changed since {folder} was run with {short} from it (sha256 {was[:12]} then, "
                f"{digest[:12]} now). Restore it, or start a new run. To use it as it is now, add --trust-code "
                "(in Python: trust_code=True)."
            )
        if name in installed(registry.group) and was:
            continue  # the user installed it, and it is the version of the run
        if (digest, str(file.resolve())) not in _known():
            raise UnknownCodeError(
                f"{folder} names code to run: {short} in {file}. You have not run this file at this place before "
                f"(sha256 {digest[:12]}), so it is not run now. Read it. If you trust it, add --trust-code (in Python: "
                f"trust_code=True), or run `protofed check` on the file. {WITHOUT_CODE}"
            )
