"""The verdict of a report in words: what was run, the result, compared with what, and whether to believe it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from protofed.experiment.stored import StoredRun, has_diverged
from protofed.experiment.wording import duration, percent, quantity
from protofed.measures.intervals import Interval, SettingRow

WAY_NAMES = {
    "head": "by head",
    "head_own": "by head among the client's classes",
    "prototype": "by the nearest prototype",
    "global": "the server's model",
}
"""Ways of predicting, as the page names them."""
_FEW_TESTS = 50
"""With fewer test examples per client than this, the accuracy of single clients is uncertain by 10 points or more."""
_STILL_RISING = 0.01
"""A mean accuracy that rose by more than this after the first four fifths of the rounds is still rising."""

_COMPARED = {
    "own classes": "by head among the client's classes",
    "by head": "by head",
    "by prototype": "by the nearest prototype",
    "mIoU": "in the mIoU of the server's model",
    "server": "by the server's model",
}
"""The figures by which settings are compared, in the order of preference, and how the sentence names them."""

Groups = Mapping[str, Sequence[StoredRun]]


def figure_rows(groups: Groups) -> list[SettingRow]:
    """The figures of the finished runs of every group, by seed."""
    return [SettingRow.of_runs(name, [run for run in runs if not run.unfinished]) for name, runs in groups.items()]


def verdict_sentences(groups: Groups) -> list[str]:
    """Sentences: a result per group, then the differences from the first group."""
    sentences = []
    for name, runs in groups.items():
        finished = [run for run in runs if not run.unfinished]
        if not finished:
            sentences.append(f"{name} on {runs[0].data} is not finished.")
            continue
        sentences.append(_result_sentence(name, finished))
    data = {name: runs[0].data for name, runs in groups.items()}
    rows = [row for row in figure_rows(groups) if row.figures]
    for row in rows[1:]:
        if data[row.setting] != data[rows[0].setting]:
            sentences.append(f"{row.setting} has other data than {rows[0].setting}, so they are not compared.")
        elif text := _difference_sentence(row, rows[0]):
            sentences.append(text)
    return sentences


def _result_sentence(name: str, runs: Sequence[StoredRun]) -> str:
    first = runs[0]
    clients, rounds = first.summary["clients"], quantity(first.summary["rounds"], "round")
    where = f"{name} on {first.data}, {quantity(clients, 'client')}, {rounds}"
    if len(runs) == 1:
        spreads = {way: spread for way, spread in first.summary["accuracy"].items() if spread and way in WAY_NAMES}
        if spreads.get("head_own") == spreads.get("head"):
            spreads.pop("head_own", None)
        figures = ", ".join(f"{percent(spread)} {WAY_NAMES[way]}" for way, spread in spreads.items())
        detail = "mean accuracy ± standard deviation over clients, each on its own test set"
    else:
        (row,) = figure_rows({name: runs})
        shown = {"by head": "by head", "by prototype": "by the nearest prototype", "mIoU": "mIoU of the server's model"}
        intervals = {figure: row.interval(figure) for figure in shown}
        figures = ", ".join(
            f"{interval.percent()} % {shown[figure]}" for figure, interval in intervals.items() if interval
        )
        detail = f"mean over {len(runs)} seeds ± half-width of the 95 % interval"
    if not figures:
        return f"{where}: there are no test examples."
    server = first.summary["global"]["accuracy"]
    own = f" The server's own model has {100 * server:.1f} %." if server is not None and len(runs) == 1 else ""
    majorities = [majority for run in runs if (majority := run.summary["majority"])]
    baseline = ""
    if majorities:
        baseline = f" Always predicting a client's most frequent class: {100 * fmean(majorities):.1f} %."
    return f"{where}: {figures} ({detail}).{own}{baseline}"


def _difference_sentence(row: SettingRow, first: SettingRow) -> str:
    """How a group compares with the first, by the same read-out and the same seeds.

    Heads are compared among the client's own classes, because personal heads and prototypes know these, too.
    """
    for figure, words in _COMPARED.items():
        gap = row.compared_with(first, figure)
        if gap is None:
            continue
        size = f"{100 * abs(gap.mean):.1f} points"
        amount = f"{size} {'from' if size == '0.0 points' else 'above' if gap.mean > 0 else 'below'}"
        return f"{row.setting} is {amount} {first.setting} {words}{_certainty(gap)}."
    return ""


def _certainty(gap: Interval) -> str:
    if gap.half is None:
        return "; with one seed, nothing says whether that is more than chance"
    interval = f" ± {100 * gap.half:.1f} over {quantity(gap.number, 'seed')}"
    if gap.excludes_zero:
        return f"{interval}: the 95 % interval excludes 0"
    return f"{interval}: the 95 % interval includes 0, so this does not establish a difference"


def cautions(groups: Groups) -> list[str]:
    """What a careful reader should know before believing the result; empty if nothing was found."""
    runs = [run for group in groups.values() for run in group]
    finished = [run for run in runs if not run.unfinished]
    notes = [
        f"{run.folder.name} is {run.state} after {quantity(len(run.rounds), 'round')}."
        for run in runs
        if run not in finished
    ]
    if finished and max(len(group) for group in groups.values()) == 1:
        notes.append(
            "There is one seed per setting. Repeat with other seeds (protofed sweep --seeds 3) to see the chance."
        )
    sizes = [row["test"] for run in finished for row in run.clients if row["test"]]
    if sizes and (middle := sorted(sizes)[len(sizes) // 2]) < _FEW_TESTS:
        notes.append(
            f"Half of the clients have {middle} or fewer test examples, so the accuracy of a single client is "
            "uncertain; the table of clients has an interval for each."
        )
    for key, word in (("rounds", "numbers of rounds"), ("dataset", "datasets")):
        if len({run.summary[key] for run in finished}) > 1:
            notes.append(f"The runs have different {word}, so they cannot be compared directly.")
    if _partitions_differ(finished):
        notes.append(
            "Runs with the same seed have different partitions of the data, so they cannot be compared directly."
        )
    notes += _unequal_read_out(finished)
    for run in finished:
        notes += _about_one_run(run)
    return notes


def _partitions_differ(runs: Sequence[StoredRun]) -> bool:
    by_seed: dict[int, set[str]] = {}
    for run in runs:
        by_seed.setdefault(run.seed, set()).add(run.partition().get("sha256", ""))
    return any(len(hashes) > 1 for hashes in by_seed.values())


def _unequal_read_out(runs: Sequence[StoredRun]) -> list[str]:
    """A caution if heads of some methods choose among more classes than those of others."""
    accuracies = [run.summary["accuracy"] for run in runs]
    gaps = {
        run.method
        for run, accuracy in zip(runs, accuracies, strict=True)
        if accuracy.get("head")
        and accuracy.get("head_own")
        and accuracy["head_own"]["mean"] > accuracy["head"]["mean"] + 0.005
    }
    if gaps and len({run.method for run in runs}) > 1:
        return [
            f"The head of {', '.join(sorted(gaps))} chooses among all classes; restricted to a client's own classes it "
            "is better. Compare methods by the same read-out (own classes)."
        ]
    return []


def _about_one_run(run: StoredRun) -> list[str]:
    notes, name = [], run.folder.name
    if run.summary["rejected"]:
        notes.append(f"{name}: {quantity(run.summary['rejected'], 'upload')} rejected; see the list below.")
    if has_diverged(run.summary):
        notes.append(f"{name}: the loss is not finite; the run has diverged.")
    tested = [(row["round"], row["accuracy_head"]) for row in run.rounds if row.get("accuracy_head") is not None]
    early = [(at, value) for at, value in tested if at <= 0.8 * len(run.rounds)]
    if early and (gain := tested[-1][1] - early[-1][1]) > _STILL_RISING:
        since = f"from round {early[-1][0]} to round {tested[-1][0]}"
        notes.append(f"{name}: accuracy still rose by {100 * gain:.1f} points {since}.")
    return notes


def cost_sentence(run: StoredRun) -> str:
    """What a finished run sent and how long it took."""
    cost, seconds = run.summary["cost"], run.summary["seconds"]
    megabytes = (cost["up_bytes"] + cost["down_bytes"]) / 1e6
    return (
        f"{megabytes:.2f} MB in both directions over {quantity(run.summary['rounds'], 'round')} and all clients; "
        f"{cost['up_params']:,} numbers sent per round; {duration(seconds['total'])}."
    )
