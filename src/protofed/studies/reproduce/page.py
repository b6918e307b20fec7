"""What a study found, to be read: tables for the screen and for a page in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from protofed.studies.reproduce.study import LAST, NEAR, Seen, Study, figure, orderings

ACCURACY = "Test accuracy in %, mean over clients and seeds ± the half-width of the 95 % interval over seeds."
QUICK_NOTE = (
    "This is the small version, of few rounds and images: it shows that all runs, not what the paper's settings give."
)
SPREAD = (
    "Each beside the paper's. Spread over clients: as it is, and as FedProto's authors' code has it (running). Rounds "
    f"to converge: of those tested, the first within {100 * NEAR:.1f} points of the mean of the last {LAST}. "
    "Sent: thousands of numbers, from all clients in a round."
)


def grid(found: Sequence[Seen]) -> tuple[list[str], list[list[str]]]:
    """Accuracies: a row for each method, for each column ours and the paper's."""
    columns = list(dict.fromkeys(one.cell.column for one in found))
    cells = {(one.cell.row, one.cell.column): _both(one) for one in found}
    rows = list(dict.fromkeys(one.cell.row for one in found))
    theirs = any(one.cell.paper for one in found)
    kinds = 1 + theirs
    heads = ["", *(told for column in columns for told in (column, "paper")[:kinds])]
    return heads, [[row, *(text for column in columns for text in cells[row, column][:kinds])] for row in rows]


def _both(one: Seen) -> tuple[str, str]:
    """Ours and the paper's."""
    return one.interval.percent(), f"{figure(one.cell.paper):.2f}" if one.cell.paper else ""


def details(study: Study, found: Sequence[Seen]) -> tuple[list[str], list[list[str]]]:
    """Spread, convergence and cost in the first column of the table."""
    first = found[0].cell.column
    heads = [first, "spread", "running", "paper", "rounds", "paper", "sent", "paper"]
    lines = []
    for one in found:
        if one.cell.column == first:
            sent, _, rounds = study.sent.get(one.cell.row, "").rpartition(", ")
            ours = one.mean
            lines.append(
                [
                    one.cell.row,
                    f"{100 * ours.spread:.1f}",
                    f"{100 * ours.running:.2f}",
                    one.cell.paper.partition("± ")[2],
                    str(ours.converged),
                    rounds,
                    f"{ours.sent / 1000:,.1f}",
                    sent,
                ]
            )
    return heads, lines


def study_verdict(found: Sequence[Seen]) -> list[str]:
    """Do the paper's orderings hold?"""
    same, opposite, open_, told = orderings(found)
    total = same + opposite + open_
    if not total:
        return []
    text = (
        f"Of the paper's {total} orderings of two methods, {same} hold (the 95 % interval of the difference, seed by "
        f"seed, excludes 0), {opposite} are reversed as surely, and {open_} cannot be told with these seeds. "
        f"Of so many intervals about {total / 20:.0f} would exclude 0 by chance, were all methods alike."
    )
    groups: dict[tuple[str, str], list[str]] = {}
    for better, worse, column in told:
        groups.setdefault((better, column), []).append(worse)
    each = [f"{better} above {', '.join(worse)} at {column}" for (better, column), worse in groups.items()]
    return [text, *([f"Reversed: {'; '.join(each)}."] if each else [])]


def rich_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    made = Table(box=SIMPLE_HEAD, padding=0)  # three columns of ours and the paper's fit 80 letters
    for place, name in enumerate(heads):
        made.add_column(
            name,
            justify="right" if place else "left",
            style="dim" if name.startswith("paper") else None,
            no_wrap=not place,
        )
    for line in lines:
        made.add_row(*line)
    return made


def _markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [list(heads), ["---"] * len(heads), *map(list, lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page(study: Study, found: Sequence[Seen], quick: bool) -> str:
    """Everything, as Markdown."""
    smaller = f", made small by {', '.join(study.quick)}" if quick else ""
    last = max(seed for one in found for seed in one.runs)
    parts = [f"# {study.title}", f"Seeds 0 to {last}{smaller}." if last else f"Seed 0{smaller}."]
    parts += [ACCURACY, _markdown(*grid(found))]
    if study.sent:
        parts += [SPREAD, _markdown(*details(study, found))]
    parts += [*study_verdict(found), *([QUICK_NOTE] if quick else [])]
    if study.known:
        parts += ["Known differences:", "\n".join(f"- {one}" for one in study.known)]
    commands = dict.fromkeys(one.cell.command(0, study.smaller(quick)) for one in found)
    parts += ["Each cell by itself (`run.seed=1` and so on for the other seeds):", "```", *commands, "```"]
    return "\n\n".join(parts[: -len(commands) - 2]) + "\n\n" + "\n".join(parts[-len(commands) - 2 :]) + "\n"
