"""The runs, pictures and tables of docs/theory.md: losses of runs next to the bounds of the papers.

    python scripts/theory_page.py [RUNS] [NAME...]

Runs go to RUNS (default: runs/theory), pictures to docs/pictures/bounds-NAME.png, the monitored rows to
docs/results/data/theory.json, tables to the screen. Without names, all runs are made: the digits in a minute, mnist in
about ten minutes on an idle core, nearly all of it for the monitor.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from series import result_of

from protofed import Result, measure
from protofed.experiment.bounds.monitor import read_bounds
from protofed.experiment.stored import StoredRun
from protofed.pictures.bound_curves import bound_picture
from protofed.pictures.style import write_picture

DOCS = Path(__file__).parents[1] / "docs"
KEPT = DOCS / "results" / "data" / "theory.json"
_DIGITS = "run.rounds=20 run.monitor=5 train.momentum=0.0"
_NORM = f"{_DIGITS} method.distance=l2 method.prototypes=fresh"
_FEW = "run.rounds=5 run.monitor=5 run.eval_every=5 data.clients=4"
RUNS = {
    "digits": ("digits-n3", f"{_NORM}"),
    "digits-small": ("digits-n3", f"{_NORM} method.pull=0.001 train.lr=0.01"),
    "digits-corollary": ("digits-n3", f"{_NORM} method.pull_schedule=corollary"),
    "digits-mse": ("digits-n3", f"{_DIGITS} method.prototypes=fresh"),
    "mnist": ("fedproto-mnist-n3", "run.rounds=20 run.monitor=5 run.eval_every=5"),
    "mnist-4": ("fedproto-mnist-n3", _FEW),
    "mnist-4-no-momentum": ("fedproto-mnist-n3", f"{_FEW} train.momentum=0.0"),
    "mnist-4-no-dropout": ("fedproto-mnist-n3", f"{_FEW} net.dropout=0.0"),
    "mnist-4-neither": ("fedproto-mnist-n3", f"{_FEW} train.momentum=0.0 net.dropout=0.0"),
    "fednh": ("digits-n3", f"{_DIGITS} method.name=fednh method.learn_scale=false"),
    "mpfedcl": (
        "digits-n3",
        f"{_DIGITS} method.name=mpfedcl method.clustering=mean method.unit=false method.temperature=10.0 "
        "train.batch=1000 train.lr=0.01",
    ),
}
"""Per run its recipe and the changes to it. mnist is the recipe itself, with momentum, dropout and mse."""
_DIGITS_KEPT = 6
"""Significant digits of the rows that are kept."""
COLUMNS = {
    "loss": "loss",
    "change": "change",
    "bound": "bound",
    "holds": "holds",
    "training_change": "training",
    "training_bound": "its bound",
    "server_change": "server",
    "server_bound": "its bound",
    "S": "S",
    "L1": "L1",
    "L2": "L2",
    "G": "G",
    "sigma2": "σ²",
    "largest_lr": "largest η",
    "largest_pull": "largest λ",
}


def command(name: str) -> str:
    """The command that repeats a run."""
    recipe, words = RUNS[name]
    return f"protofed run recipes/{recipe}.toml {' '.join(f'--set {word}' for word in words.split())}"


def kept_run(folder: Path, name: str) -> dict[str, Any]:
    """What is kept of a run: its verdict, broken premises, and monitored rows."""
    found = measure(Result.load(folder), ["bounds"])["bounds"]
    rows = [
        {key: float(f"{value:.{_DIGITS_KEPT}g}") if isinstance(value, float) else value for key, value in row.items()}
        for row in read_bounds(folder)
    ]
    return {"command": command(name), "verdict": found.about, "premises": list(found.notes), "rows": rows}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A table with a row per round: means over clients, how often the bound holds, and the smallest limits."""
    columns = {column: head for column, head in COLUMNS.items() if column in rows[0] or column == "holds"}
    lines = [f"| round | {' | '.join(columns.values())} |", f"|---|{'---|' * len(columns)}"]
    for number in dict.fromkeys(row["round"] for row in rows):
        of_round = [row for row in rows if row["round"] == number]
        lines.append(f"| {number} | {' | '.join(_cell(of_round, column) for column in columns)} |")
    return "\n".join(lines)


def _cell(rows: Sequence[dict[str, Any]], column: str) -> str:
    values = [row[column] for row in rows if row[column] is not None]
    if not values:
        return "-"
    if column == "holds":
        return f"{sum(values)} of {len(values)}"
    value = min(values) if column.startswith("largest") else sum(values) / len(values)
    return f"{value:.3g}"


def premise_table(kept: dict[str, Any]) -> str:
    """What momentum and dropout do to Lemma 1 on the mnist recipe: a row per run, means over its clients."""
    names = {
        "mnist-4": "as it is",
        "mnist-4-no-momentum": "no momentum",
        "mnist-4-no-dropout": "no dropout",
        "mnist-4-neither": "neither",
    }
    lines = ["| | change in training | its bound | holds |", "|---|---|---|---|"]
    for name, about in names.items():
        rows = kept[name]["rows"]
        change, bound = (_cell(rows, column) for column in ("training_change", "training_bound"))
        lines.append(f"| {about} | {change} | {bound} | {sum(r['training_holds'] for r in rows)} of {len(rows)} |")
    return "\n".join(lines)


def write_kept(kept: dict[str, Any]) -> None:
    """Write theory.json: per run the names of the columns once, then a line per row."""
    runs = []
    for name, run in kept.items():
        columns = list(run["rows"][0])
        rows = ",\n  ".join(json.dumps([row[column] for column in columns]) for row in run["rows"])
        rest = {key: value for key, value in run.items() if key != "rows"}
        parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in (*rest.items(), ("columns", columns))]
        runs.append(f"{json.dumps(name)}: {{\n" + ",\n".join([*parts, f' "rows": [\n  {rows}\n ]']) + "\n}")
    KEPT.write_text("{\n" + ",\n".join(runs) + "\n}\n", encoding="utf-8")


def read_kept() -> dict[str, Any]:
    """What theory.json has, with each row as a dictionary."""
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    for run in kept.values():
        columns = run.pop("columns")
        run["rows"] = [dict(zip(columns, row, strict=True)) for row in run["rows"]]
    return kept


def main(runs: Path, names: Sequence[str]) -> None:
    """Make the runs, and write everything that the page shows of them."""
    kept = read_kept()
    for name in names or RUNS:
        recipe, words = RUNS[name]
        folder = runs / name
        result_of(folder, f"recipes/{recipe}.toml", words)
        kept[name] = kept_run(folder, name)
        picture = DOCS / "pictures" / f"bounds-{name}.png"
        if name in ("digits", "digits-small", "mnist"):
            write_picture(bound_picture([StoredRun.load(folder)]), picture)
    write_kept({name: kept[name] for name in RUNS if name in kept})
    for name in names or RUNS:
        print(f"{name}: {kept[name]['command']}\n{kept[name]['verdict']}\n\n{table(kept[name]['rows'])}")
        print("\n".join(kept[name]["premises"]), "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/theory"), sys.argv[2:])
