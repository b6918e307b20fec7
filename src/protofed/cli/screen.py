"""What the user sees of a run: a live table on a terminal, plain lines elsewhere, and a verdict at the end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.live import Live
from rich.table import Table

from protofed.cli.cautions import size_caution, unknown_text
from protofed.cli.client_lines import client_lines
from protofed.cli.printing import say
from protofed.experiment.divergence import pull_warning
from protofed.experiment.privacy_figures import privacy_text
from protofed.experiment.watchers import Watcher
from protofed.experiment.wording import duration, percent, quantity, void_text
from protofed.plugins import label

if TYPE_CHECKING:
    from rich.console import Console

    from protofed.experiment.config import Config
    from protofed.experiment.members import Members
    from protofed.experiment.results import Result, RoundRow

_ROWS_SHOWN = 12
"""Rounds in the live table."""
_ROUNDS_TIMED = 20
"""Rounds from which the time left is estimated."""
_REFRESH, _EVERY_LINE = 0.2, 30.0
"""Seconds between two reports within a round, on a terminal and elsewhere."""
_WAYS = {
    "head": "by head",
    "head_own": "by head among the client's classes",
    "prototype": "by the nearest prototype",
    "prototype_all": "by the nearest prototype among all classes",
    "prototype_own": "by the nearest prototype among the client's classes",
}


class Screen(Watcher):
    """Shows a run while it goes on; use it as a context manager."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.last: deque[RoundRow] = deque(maxlen=_ROWS_SHOWN)
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self.total, self.shown = 0, time.perf_counter()
        self.names: Sequence[str] = ()
        self.budget = self.spent = 0.0
        self.seconds: deque[float] = deque(maxlen=_ROUNDS_TIMED)

    def __enter__(self) -> Screen:
        if self.live:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.stop()

    def preparing(self, text: str) -> None:
        say(self.console, text)

    def started(self, config: Config, members: Members, rounds: Sequence[RoundRow], notes: Sequence[str]) -> None:
        done, self.total, self.budget = len(rounds), config.run.rounds, config.run.seconds
        self.names = members.names
        self.spent = sum(row["seconds"] for row in rounds)
        sizes, sample = [len(train) for train in members.train], config.run.sample
        size_range = f"{min(sizes)}-{max(sizes)}" if min(sizes) < max(sizes) else f"{sizes[0]}"
        nets = ", ".join(dict.fromkeys(net.name for net in members.nets))
        reason = f" ({config.engine.reason})" if config.engine.reason else ""
        say(
            self.console,
            f"{label(config.method_name)} on {members.title}: {quantity(len(members), 'client')}, "
            f"{sample if isinstance(sample, int) else f'{100 * sample:g} %'} of them per round; "
            f"partition {label(config.partition_name)}, {size_range} training examples per client, "
            f"{sum(sizes):,} in total; "
            f"net {nets}; engine {config.engine.name}{reason}",
        )
        for note in notes:
            say(self.console, note)
        if done:
            within = ", all that run.seconds allows" if done < self.total else ""
            is_over = config.run.is_over(done, self.spent)
            complete = f"The run is complete after {quantity(done, 'round')}{within}."
            say(self.console, complete if is_over else f"Resuming after round {done}.")

    def progress(self, round: int, done: int, of: int) -> None:
        """Show how far a long round is: on a terminal below the table, elsewhere every half minute."""
        now = time.perf_counter()
        if now - self.shown < (_REFRESH if self.live else _EVERY_LINE) or done == of:
            return
        self.shown = now
        text = f"round {round}/{self.total}: {done} of {of} clients trained"
        if self.live:
            self.live.update(Group(*([self.table()] if self.last else []), text), refresh=True)
        else:
            say(self.console, text)

    def round(self, row: RoundRow) -> None:
        self.shown = time.perf_counter()
        self.seconds.append(row["seconds"])
        self.spent += row["seconds"]
        self.last.append(row)
        if row["rejected"]:
            clients_by_reason: dict[str, list[str]] = {}
            for client, reason in row["rejected"].items():
                name = self.names[int(client)] if self.names else client
                clients_by_reason.setdefault(reason, []).append(name)
            reasons = "; ".join(
                f"{reason}: client{'s' if len(clients) > 1 else ''} {', '.join(clients)}"
                for reason, clients in clients_by_reason.items()
            )
            say(
                self.console,
                f"round {row['round']}: {len(row['rejected'])} of {len(row['clients'])} uploads rejected ({reasons})",
            )
        if text := void_text(row):
            say(self.console, text)
        if self.live:
            self.live.update(self.table(), refresh=True)
        else:
            cells = {**self.cells(row), "left": self.time_left()}
            say(self.console, "  ".join(f"{name} {value}" for name, value in cells.items()))

    def warned(self, text: str) -> None:
        say(self.console, text)

    def time_left(self) -> str:
        """The time that the remaining rounds take if they are as fast as the last ones, within the time budget."""
        left = sum(self.seconds) / len(self.seconds) * (self.total - self.last[-1]["round"])
        return duration(min(left, max(self.budget - self.spent, 0)) if self.budget else left)

    def cells(self, row: RoundRow) -> dict[str, str]:
        """The row of a round, by column."""

        def accuracy(way: str) -> str:
            return percent({"mean": row[f"accuracy_{way}"], "std": row[f"accuracy_{way}_std"]})

        return {
            "round": f"{row['round']}/{self.total}",
            **{name: f"{value:.3f}" for name, value in row["loss"].items()},
            "head": accuracy("head"),
            "prototype": accuracy("prototype"),
            **_overlap_cell(row),
            "sent": f"{row['up_params']:,}",
        }

    def table(self) -> Table:
        """The last rounds."""
        about = (
            "Terms of the loss; accuracy ± standard deviation over clients, each on its own test set; "
            "numbers sent by all clients."
        )
        table = Table(caption=f"{about}\nTime left: {self.time_left()}")
        for name in self.cells(self.last[-1]):
            table.add_column(name, justify="right", no_wrap=True)
        for row in self.last:
            table.add_row(*self.cells(row).values())
        return table


def _overlap_cell(row: RoundRow) -> dict[str, str]:
    """The column mIoU, if pixels have labels: of the server's model, or the mean over clients if it has none."""
    if "miou_head" not in row and row["miou"] is None:
        return {}
    overlap = row["miou"] if row["miou"] is not None else row["miou_head"]
    return {"mIoU": "-" if overlap is None else f"{overlap:.3f}"}


def run_verdict(result: Result) -> str:
    """Lines: accuracy, comparison with the majority-class baseline, unknown inputs, cost. The last names the files."""
    summary: dict[str, Any] = result.summary
    accuracies = {way: spread for way, spread in summary["accuracy"].items() if spread}
    if accuracies.get("head_own") == accuracies.get("head"):
        accuracies.pop("head_own", None)
    answers = {way: spread["mean"] for way, spread in accuracies.items() if way != "head_own"}  # the method's own
    tested = sum(row["test"] > 0 for row in result.clients)
    lines = [
        f"{summary['method']} on {result.state.members.title} after {quantity(summary['rounds'], 'round')}: "
        + _accuracy_text(accuracies, tested, result.state.config.eval.reporting),
        _overlap_text(summary["miou"]),
        " ".join(_judgements(summary, answers, pull_warning(result.state.config, result.rounds))),
        client_lines(result.clients),
        size_caution([row["test"] for row in result.clients]) if not result.state.members.nets[0].grid else "",
        unknown_text(summary["unknown"]),
        privacy_text(summary["privacy"]),
        _cost_text(summary),
    ]
    if result.folder:
        paths = [path for path in result.folder.iterdir() if not path.name.startswith(".")]
        files = sorted(path.name + ("/" if path.is_dir() else "") for path in paths)
        lines.append(f"Written to {result.folder}: {', '.join(files)}")
    return "\n".join(filter(None, lines))


def _accuracy_text(accuracies: Mapping[str, dict[str, float]], tested: int, reporting: str) -> str:
    """The accuracies by way of predicting, and the number of clients that they are a mean of."""
    if not accuracies:
        return "no client was tested: none has test examples, or none answered."
    by_way = ", ".join(f"{percent(spread)} {_WAYS.get(way, way)}" for way, spread in accuracies.items())
    running = " of running averages" if reporting == "running" else ""
    return f"{by_way} (mean accuracy ± standard deviation{running} over {quantity(tested, 'client')})."


def _overlap_text(overlap: Mapping[str, Any]) -> str:
    """The mIoU of the server's model and of the clients, and the baseline; "" if pixels have no labels."""
    if "clients" not in overlap:
        return ""
    figures = []
    if overlap["mean"] is not None:
        figures.append(f"{overlap['mean']:.3f} by the server's model on the balanced test set")
    for way, spread in overlap["clients"].items():
        if spread["mean"] is not None and way in ("head", "prototype"):
            figures.append(f"{spread['mean']:.3f} ± {spread['std']:.3f} over clients {_WAYS[way]}")
    baseline = f" Background everywhere: {overlap['background']:.3f}." if overlap["background"] is not None else ""
    return f"mIoU: {', '.join(figures) or 'none'}.{baseline} Accuracies are shares of pixels."


def _judgements(summary: Mapping[str, Any], answers: Mapping[str, float], warning: str) -> list[str]:
    """Sentences that compare the accuracies with the majority-class baseline, and say what else is notable.

    `answers`: the accuracy of each of the method's own ways of predicting.
    """
    majority, server, personal = summary["majority"], summary["global"]["accuracy"], summary["personal"]
    if majority is None or majority != majority:
        sentences = []
    else:
        gains = {way: 100 * (answers[way] - majority) for way in ("head", "prototype") if way in answers}
        if majority > 0.99:
            comparison = "Each client is tested on (almost) a single class, so no accuracy can be much higher."
        elif max(gains.values(), default=0.0) > 0:
            comparison = (
                f"Compared with it: {', '.join(f'{gain:+.1f} points {_WAYS[way]}' for way, gain in gains.items())}."
            )
        else:
            comparison = "No accuracy is higher: check the loss, train.lr, train.epochs and run.rounds."
        sentences = [f"Majority-class baseline: {100 * majority:.1f} %.", comparison]
    if warning:
        sentences[1:] = [warning]
    elif any(value is None or value != value for value in summary["loss"].values()):
        sentences[1:] = ["The loss is not finite: the run has diverged. Try a smaller train.lr, or train.clip."]
    if summary["rejected"]:
        sentences.append(f"{summary['rejected']:,} uploads were rejected; rounds.jsonl gives the reasons.")
    if attack := summary.get("attack"):
        ways = ("head", "prototype")
        honest = ", ".join(f"{100 * share:.1f} % by {way}" for way, share in attack["honest"].items() if way in ways)
        sentences.append(f"Without the {quantity(len(attack['attackers']), 'attacker')}: {honest}.")
    if server is not None:
        sentences.append(f"The server's own model: {100 * server:.1f} % on the balanced test set.")
    if personal["v"] is not None:
        scored = "the last round's clients" if personal["clients"] == "round" else "the clients"
        equal, by_size = (f"{100 * personal[key]:.1f} % ± {100 * personal[f'{key}_std']:.1f}" for key in ("v", "l"))
        sentences.append(
            f"The latest models of {scored} on the balanced test set: {equal} if the classes that a client holds have "
            f"equal weights (PM(V)), {by_size} if they are weighted by its training examples (PM(L))."
        )
    return sentences


def _cost_text(summary: Mapping[str, Any]) -> str:
    cost, seconds = summary["cost"], summary["seconds"]
    return (
        f"Per round, all clients together send {cost['up_params']:,} numbers and receive {cost['down_params']:,} on "
        f"average. {quantity(summary['rounds'], 'round')} took {duration(seconds['total'])} "
        f"({seconds['per_round']:.2f} s per round)."
        + (" The time budget, run.seconds, ended the run." if summary["ended_by"] == "seconds" else "")
    )
