"""Measure what attackers do to federations, and what robust averages do about it: docs/results/trust.md.

    python benchmarks/attacks.py [--jobs 2] [--only "iid fedproto"] [--write]

MNIST, 20 clients with 100 training images each, 20 rounds, one seed. First sign flips by 0 to 40 % of the clients, for
every rule and method, then the other attacks by 30 %. Runs that the JSON file already has are not repeated, so that the
benchmark can be stopped and started again. About 130 CPU minutes in total, 13 s per run. `--write` runs nothing: it
writes the tables and the figure of the page from the finished runs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import re
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

TOP = Path(__file__).parents[1]
KEPT = TOP / "docs" / "results" / "data" / "attacks.json"
PAGE = TOP / "docs" / "results" / "trust.md"
FIGURE = TOP / "docs" / "pictures" / "attacks.png"
OWN_START = "fedproto-own"
"""fedproto with clients that start from different weights."""
METHODS = ("fedproto", "fedavg", "fednh", "mpfedcl", "protomargin")
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4)
OTHER_KINDS = ("scale", "little", "random", "label_flip", "swap", "backdoor")
TARGETED = ("label_flip", "swap", "backdoor")
RULES: dict[str, dict[str, Any]] = {
    "mean": {},
    "clip": {"clip": 1.0},
    "median": {"weights": "median", "prototypes": "median"},
    "trimmed_mean": {"weights": "trimmed_mean", "prototypes": "trimmed_mean"},
    "geometric_median": {"weights": "geometric_median", "prototypes": "geometric_median"},
    "krum": {"weights": "krum", "prototypes": "geometric_median"},
    "multi_krum": {"weights": "multi_krum", "prototypes": "geometric_median"},
    "capped": {"weights": "geometric_median", "prototypes": "geometric_median", "norm_cap": 3.0},
}
PARTITIONS: dict[str, dict[str, Any]] = {
    "iid": {"data": {"limit": 2000}, "partition": {"name": "iid"}},
    "nway": {"partition": {"name": "nway", "ways": 3, "shots": 33, "test": 40}},
}
COMMON = {
    "run": {"rounds": 20, "eval_every": 20},
    "data": {"name": "mnist", "clients": 20},
    "net": {"name": "cnn"},
    "train": {"lr": 0.03},
    "eval": {"unknown": "none"},
    "engine": {"name": "stacked", "workers": 1},
}
WAYS = ("head", "prototype")


class Cell(NamedTuple):
    """One run."""

    partition: str
    method: str
    kind: str
    share: float
    rule: str

    @property
    def name(self) -> str:
        return f"{self.partition} {self.method} {self.kind} {self.share:g} {self.rule}"

    def table(self) -> dict[str, Any]:
        """The experiment."""
        own = PARTITIONS[self.partition]
        start = {"fedproto": {"initial_weights": "same"}, OWN_START: {"initial_weights": "own"}}.get(self.method, {})
        method = {"name": self.method.removesuffix("-own"), **start}
        return {
            **COMMON,
            "data": {**COMMON["data"], **own.get("data", {})},
            "partition": own["partition"],
            "method": method,
            "trust": {"quorum": 0.5, "assumed": max(self.share, 0.3), **RULES[self.rule]},
            "attack": {"share": self.share, "kind": self.kind},
        }


def cells() -> list[Cell]:
    """All runs, the most important first: the mean and the geometric median, without attackers and with 30 %."""
    grid = [
        Cell(partition, method, kind, share, rule)
        for kind, shares in (("sign_flip", SHARES), *((kind, (0.3,)) for kind in OTHER_KINDS))
        for partition in PARTITIONS
        for method in METHODS
        for share in shares
        for rule in (rules_of(method) if kind == "sign_flip" else rules_of_others(method))
        if (kind, method) != ("swap", "fedavg")  # it has no prototypes
        if rule != "krum" or share in (0.0, 0.3)
    ]

    def stage(cell: Cell) -> tuple[bool, bool, bool]:
        main = cell.rule in ("mean", "geometric_median")
        return cell.rule == "krum", cell.share not in (0.0, 0.3), not main

    own_start = [
        Cell("iid", OWN_START, "sign_flip", share, rule)
        for share in (0.0, 0.3)
        for rule in ("mean", "geometric_median")
    ]
    return own_start + sorted(grid, key=stage)


def rules_of(method: str) -> tuple[str, ...]:
    """The rules for a method. Krum is for weights, which clients of fedproto keep; only mpfedcl needs a cap."""
    unused = {"capped"} if method != "mpfedcl" else set()
    return tuple(rule for rule in RULES if rule not in unused and (method != "fedproto" or "krum" not in rule))


def rules_of_others(method: str) -> tuple[str, ...]:
    """The rules that are tried with the other attacks."""
    return tuple(rule for rule in rules_of(method) if rule not in ("krum", "trimmed_mean"))


def measured(cell: Cell) -> tuple[str, dict[str, Any]]:
    """The figures of one run."""
    import protofed

    warnings.simplefilter("ignore")
    began = time.process_time()
    result = protofed.run(cell.table(), progress=False)
    attack = result.summary.get("attack", {})
    ways = [way for way in WAYS if result.summary["accuracy"].get(way)]
    return cell.name, {
        "accuracy": {way: [round(row[f"accuracy_{way}"], 4) for row in result.clients] for way in ways},
        "attackers": attack.get("attackers", []),
        "success": attack.get("success"),
        "rejected": result.summary["rejected"],
        "void": sum(row["void"] for row in result.rounds),
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def honest(run: dict[str, Any], way: str, attackers: list[int] | None = None) -> float:
    """The mean accuracy, in percent, over the clients that are no attackers."""
    left_out = run["attackers"] if attackers is None else attackers
    values = [value for client, value in enumerate(run["accuracy"][way]) if client not in left_out]
    return 100 * sum(values) / len(values)


def readings(kept: dict[str, Any], method: str) -> list[str]:
    """The ways of predicting of a method, of which there are runs."""
    runs = [run for name, run in kept.items() if name.split()[1] == method]
    return [way for way in WAYS if any(way in run["accuracy"] for run in runs)]


def share_table(kept: dict[str, Any], partition: str) -> str:
    """Accuracies of honest clients by share of attackers that flip signs."""
    lines = [
        f"| method, read out by | rule | {' | '.join(f'{100 * share:g} %' for share in SHARES)} |",
        f"|---|---|{'---|' * len(SHARES)}",
    ]
    wanted = {cell.name for cell in cells()}
    for method in METHODS:
        for way in readings(kept, method):
            for rule in rules_of(method):
                names = [Cell(partition, method, "sign_flip", share, rule).name for share in SHARES]
                missing = ["…" if name in wanted else "-" for name in names]
                values = [
                    f"{honest(kept[name], way):.1f}" if name in kept else sign
                    for name, sign in zip(names, missing, strict=True)
                ]
                lines.append(f"| {method}, {way} | `{rule}` | {' | '.join(values)} |")
    return "\n".join(lines)


def kind_table(kept: dict[str, Any], partition: str) -> str:
    """Accuracies of honest clients under the other attacks, and in brackets the success of those with an aim."""
    lines = [
        f"| method, read out by | rule | none | {' | '.join(f'`{kind}`' for kind in OTHER_KINDS)} |",
        f"|---|---|---|{'---|' * len(OTHER_KINDS)}",
    ]
    for method in METHODS:
        for way in readings(kept, method):
            for rule in rules_of_others(method):
                clean = kept.get(Cell(partition, method, "sign_flip", 0.0, rule).name)
                row = [f"{honest(clean, way):.1f}" if clean else "…"]
                for kind in OTHER_KINDS:
                    run = kept.get(Cell(partition, method, kind, 0.3, rule).name)
                    if (kind, method) == ("swap", "fedavg"):
                        row.append("-")
                    elif not run:
                        row.append("…")
                    else:
                        share = (run["success"] or {}).get(way)
                        row.append(f"{honest(run, way):.1f}" + (f" ({100 * share:.0f})" if share is not None else ""))
                lines.append(f"| {method}, {way} | `{rule}` | {' | '.join(row)} |")
    return "\n".join(lines)


def claim_table(kept: dict[str, Any]) -> str:
    """fedproto, iid, 30 % sign flips: points that honest clients lose, compared with no attack."""
    lines = ["| clients start from | rule | lost by head | lost by prototype |", "|---|---|---|---|"]
    for method, start in (("fedproto", "the same weights"), (OWN_START, "weights of their own")):
        clean = kept.get(Cell("iid", method, "sign_flip", 0.0, "mean").name)
        for rule in rules_of("fedproto"):
            run = kept.get(Cell("iid", method, "sign_flip", 0.3, rule).name)
            if clean and run:
                lost = [honest(clean, way, run["attackers"]) - honest(run, way) for way in WAYS]
                lines.append(f"| {start} | `{rule}` | {lost[0]:.1f} | {lost[1]:.1f} |")
    return "\n".join(lines)


def progress_text(kept: dict[str, Any]) -> str:
    """How much of the grid is finished."""
    wanted = [cell.name for cell in cells()]
    done = [name for name in wanted if name in kept]
    minutes = sum(kept[name]["cpu_seconds"] for name in done) / 60
    state = "The grid is complete" if len(done) == len(wanted) else "The grid is unfinished; … marks what is missing"
    return f"{state}: {len(done)} of {len(wanted)} runs, {minutes:.0f} CPU minutes."


def draw(kept: dict[str, Any]) -> None:
    """A panel per partition and method: accuracy of honest clients over the share of attackers, a line per rule."""
    import matplotlib.pyplot as plt

    from protofed.pictures.style import COLOURS, MARKS, STYLES, with_column_fonts

    @with_column_fonts
    def panels() -> None:
        figure, axes = plt.subplots(2, len(METHODS), figsize=(9.5, 4.2), sharex=True, sharey=True)
        for row, partition in enumerate(PARTITIONS):
            for column, method in enumerate(METHODS):
                axis, way = axes[row, column], "prototype" if method == "fedproto" else "head"
                for number, rule in enumerate(RULES):
                    found = [
                        (100 * share, honest(run, way))
                        for share in SHARES
                        if (run := kept.get(Cell(partition, method, "sign_flip", share, rule).name))
                    ]
                    if found and rule in rules_of(method):
                        style = {"color": COLOURS[number], "marker": MARKS[number % 7], "linestyle": STYLES[number % 4]}
                        axis.plot(*zip(*found, strict=True), label=rule, markersize=3, linewidth=1, **style)
                axis.set_title(f"{method}, {partition}")
                axis.grid(linewidth=0.3)
                if row:
                    axis.set_xlabel("attackers in %")
                if not column:
                    axis.set_ylabel("accuracy of honest clients in %")
        handles = {label: line for axis in axes.flat for line, label in zip(*axis.get_legend_handles_labels())}  # noqa: B905
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(RULES), frameon=False)
        figure.set_layout_engine("constrained")
        figure.savefig(FIGURE, dpi=160)

    panels()


def parts_of(kept: dict[str, Any]) -> dict[str, str]:
    """The parts of the page that follow from the runs."""
    return {
        "progress": progress_text(kept),
        "claim": claim_table(kept),
        **{f"sign flips, {partition}": share_table(kept, partition) for partition in PARTITIONS},
        **{f"other attacks, {partition}": kind_table(kept, partition) for partition in PARTITIONS},
    }


def with_parts(text: str, parts: dict[str, str]) -> str:
    """A page with its parts between marks like <!-- attacks: claim --> and <!-- attacks end --> replaced."""

    def marked(found: re.Match[str]) -> str:
        return f"<!-- attacks: {found[1]} -->\n\n{parts[found[1]]}\n\n<!-- attacks end -->"

    return re.sub(r"<!-- attacks: ([^>]*) -->.*?<!-- attacks end -->", marked, text, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--only", default="", help="run only cells that begin with these words")
    parser.add_argument("--json", type=Path, default=KEPT)
    parser.add_argument("--write", action="store_true", help="write the page from the finished runs, run nothing")
    arguments = parser.parse_args()
    kept = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    missing = [cell for cell in cells() if cell.name not in kept and cell.name.startswith(arguments.only)]
    if not arguments.write and missing:
        os.environ["OMP_NUM_THREADS"] = "1"
        with mp.get_context("spawn").Pool(arguments.jobs, maxtasksperchild=50) as pool:
            for name, figures in pool.imap_unordered(measured, missing):
                kept[name] = figures
                part = arguments.json.with_suffix(".part")
                part.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
                part.replace(arguments.json)
                accuracies = ", ".join(f"{way} {honest(figures, way):.1f}" for way in figures["accuracy"])
                print(f"{name}: {accuracies} ({figures['cpu_seconds']:g} CPU s)", flush=True)
    if arguments.json == KEPT:
        PAGE.write_text(with_parts(PAGE.read_text(encoding="utf-8"), parts_of(kept)), encoding="utf-8")
        draw(kept)
    print(progress_text(kept))


if __name__ == "__main__":
    main()
