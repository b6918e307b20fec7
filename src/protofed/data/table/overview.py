"""What tables have: their columns with kinds and missing values, and their classes, for `protofed data info`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from protofed.data.table.client_tables import TableOptions
from protofed.data.table.columns import check_kinds, find_columns
from protofed.data.table.recipe import texts_of
from protofed.errors import UserError


def table_overview(frames: Mapping[str, tuple[str, Any]], options: TableOptions) -> dict[str, Any]:
    """Per client its rows and classes; per column its kind and values; and what a run would stop at."""
    left_out = {options.target, options.test, *options.drop}
    problems: list[str] = []
    columns: dict[str, dict[str, Any]] = {}
    kinds: dict[str, dict[str, Any]] = {}
    clients: dict[str, dict[str, Any]] = {}
    for client, (origin, frame) in frames.items():
        used = [name for name in frame.columns if name not in left_out and f"{client}:{name}" not in options.drop]
        clients[client] = {"rows": len(frame), "columns": len(used), "classes": {}}
        if options.target in frame.columns:
            classes, counts = np.unique(texts_of(frame[options.target].dropna()), return_counts=True)
            clients[client]["classes"] = dict(zip(classes.tolist(), counts.tolist(), strict=True))
        elif options.target:
            problems.append(f'{origin} has no column "{options.target}", the target.')
        kinds[origin] = {}
        for name in used:
            try:
                found = find_columns(frame[[name]], origin, options.categories)[name]
            except UserError as problem:
                problems.append(str(problem))
                continue
            kinds[origin][name] = found
            about = columns.setdefault(name, {"kind": found.kind, "clients": [], "missing": 0, "values": []})
            about["clients"].append(client)
            about["missing"] += found.missing
            about["values"] = _values(frame[name].dropna(), found.kind, about["values"])
    try:
        check_kinds(kinds)
    except UserError as problem:
        problems.append(str(problem))
    return {"target": options.target, "clients": clients, "columns": columns, "problems": problems}


def _values(values: Any, kind: str, before: list[Any]) -> list[Any]:
    """The smallest and the largest number, or all categories, of this client and of those before."""
    if kind == "number":
        numbers = [*(value for value in before if not isinstance(value, str)), float(values.min()), float(values.max())]
        return [min(numbers), max(numbers)]
    return sorted({*map(str, before), *texts_of(values).tolist()})


def overview_text(name: str, about: Mapping[str, Any]) -> str:
    """The overview as text."""
    clients, columns = about["clients"], about["columns"]
    rows = sum(client["rows"] for client in clients.values())
    lines = [f"{name}: {len(clients)} tables, {rows:,} rows, {len(columns)} columns", ""]
    table = [["column", "kind", "missing", "clients", "values"]]
    for column, found in columns.items():
        everywhere = len(found["clients"]) == len(clients)
        holders = "all" if everywhere else f"{len(found['clients'])} of {len(clients)}"
        table.append([column, found["kind"], f"{found['missing']:,}", holders, _values_text(found)])
    lines += [*_aligned(table), ""]
    table = [["client", "rows", "columns", f"classes of {about['target']}" if about["target"] else ""]]
    for client, sizes in clients.items():
        classes = ", ".join(f"{label} {count:,}" for label, count in list(sizes["classes"].items())[:12])
        table.append([client, f"{sizes['rows']:,}", f"{sizes['columns']:,}", classes])
    lines += _aligned(table)
    if about["problems"]:
        lines += ["", "A run would stop at:", *(f"  - {problem}" for problem in about["problems"])]
    return "\n".join(lines)


def _values_text(found: Mapping[str, Any]) -> str:
    """A range of numbers, or the first categories.

    >>> _values_text({"kind": "number", "values": [1.0, 2.5]}), _values_text({"kind": "category", "values": ["a", "b"]})
    ('1 to 2.5', 'a, b')
    """
    if found["kind"] == "number":
        return " to ".join(f"{value:g}" for value in found["values"])
    shown = ", ".join(str(value)[:20] for value in found["values"][:5])
    return f"{shown}, ... ({len(found['values']):,})" if len(found["values"]) > 5 else shown


def _aligned(table: list[list[str]]) -> list[str]:
    """The lines of a table with columns of equal width."""
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
