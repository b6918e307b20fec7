"""The accuracies of clients that have names, one line per client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MOST_LINES = 30
"""With more clients than this, clients.csv has them, but they are not printed."""


def client_lines(clients: Sequence[Mapping[str, Any]]) -> str:
    """A table of rows of clients.csv; "" if the clients have numbers only, or are too many.

    >>> row = {"name": "va", "classes": "none ill", "train": 90, "test": 20, "accuracy_head": 0.75}
    >>> print(client_lines([row]))
    client  training  test    head  classes
    va            90    20  75.0 %  none ill
    """
    if not clients or "name" not in clients[0] or len(clients) > _MOST_LINES:
        return ""
    ways = [way for way in ("head", "prototype") if any(row.get(f"accuracy_{way}") is not None for row in clients)]
    table = [["client", "training", "test", *ways, "classes"]]
    for row in clients:
        shares = [row[f"accuracy_{way}"] for way in ways]
        cells = ["-" if share is None else f"{100 * share:.1f} %" for share in shares]
        table.append([str(row["name"]), f"{row['train']:,}", f"{row['test']:,}", *cells, row["classes"]])
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in (0, len(line) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    )
