"""What a person sees of a run: a live table on a terminal, plain lines elsewhere, a verdict at the end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.table import Table

from protofed.experiment.watchers import Watcher
from protofed.experiment.wording import duration, many, percent

if TYPE_CHECKING:
    from rich.console import Console

    from protofed.experiment.config import Config
    from protofed.experiment.members import Members
    from protofed.experiment.results import Result, RoundRow
    from protofed.studies.sweep import SweepRun

_SHOWN = 12


class Screen(Watcher):
    """Shows a run while it goes; use it as a context manager."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.last: deque[RoundRow] = deque(maxlen=_SHOWN)
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self.total = 0
        self.spent: list[float] = []

    def __enter__(self) -> Screen:
        if self.live:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.stop()

    def started(self, config: Config, members: Members, rounds: Sequence[RoundRow], notes: Sequence[str]) -> None:
        done = len(rounds)
        self.total = config.run.rounds
        sizes, sample = [len(train) for train in members.train], config.run.sample
        each = f"{min(sizes)}-{max(sizes)}" if min(sizes) < max(sizes) else f"{sizes[0]}"
        nets = ", ".join(dict.fromkeys(net.name for net in members.nets))
        told = f" ({config.engine.reason})" if config.engine.reason else ""
        say(
            self.console,
            f"{config.method_name} on {members.title}: {many(len(members), 'client')}, "
            f"{sample if isinstance(sample, int) else f'{sample:.0%}'} of them a round ({config.partition_name}, "
            f"{each} training examples each, {sum(sizes):,} in all), net {nets}, engine {config.engine.name}{told}",
        )
        for note in notes:
            say(self.console, note)
        if done:
            say(
                self.console,
                f"resuming after round {done}" if done < self.total else f"all {done} rounds are done already",
            )

    def round(self, row: RoundRow) -> None:
        self.spent.append(row["seconds"])
        self.last.append(row)
        if row["rejected"]:
            reasons: dict[str, list[str]] = {}
            for client, reason in row["rejected"].items():
                reasons.setdefault(reason, []).append(client)
            told = "; ".join(f"{reason}: clients {', '.join(clients)}" for reason, clients in reasons.items())
            say(
                self.console,
                f"round {row['round']}: {len(row['rejected'])} of {len(row['clients'])} uploads rejected ({told})",
            )
        if self.live:
            self.live.update(self.table(), refresh=True)
        else:
            say(
                self.console,
                "  ".join(f"{name} {value}" for name, value in {**self.cells(row), "left": self.left()}.items()),
            )

    def left(self) -> str:
        """How long the remaining rounds will take, if they are like the last ones."""
        recent = self.spent[-20:]
        return duration(sum(recent) / len(recent) * (self.total - self.last[-1]["round"]))

    def cells(self, row: RoundRow) -> dict[str, str]:
        """A round in words."""

        def accuracy(way: str) -> str:
            return percent({"mean": row[f"accuracy_{way}"], "std": row[f"accuracy_{way}_std"]})

        return {
            "round": f"{row['round']}/{self.total}",
            **{name: f"{value:.3f}" for name, value in row["loss"].items()},
            "head": accuracy("head"),
            "prototype": accuracy("prototype"),
            "sent": f"{row['up_params']:,}",
        }

    def table(self) -> Table:
        """The last rounds."""
        about = "Loss terms; accuracy ± spread over clients, each on its own test set; numbers sent up."
        table = Table(caption=f"{about}\nTime left: {self.left()}")
        for name in self.cells(self.last[-1]):
            table.add_column(name, justify="right", no_wrap=True)
        for row in self.last:
            table.add_row(*self.cells(row).values())
        return table


class Progress:
    """How far many runs are; those that were there already do not count for the estimate."""

    def __init__(self, console: Console, jobs: Sequence[SweepRun]) -> None:
        self.console, self.ended, self.began = console, 0, time.perf_counter()
        self.there = {job.out for job in jobs if (job.out / "result.json").exists()}
        self.fresh = len(jobs) - len(self.there)
        say(console, f"{many(len(jobs), 'run')}, {self.fresh} to be made, two at a time")

    def told(self, job: SweepRun, result: dict[str, Any]) -> None:
        """One of them has ended."""
        if job.out in self.there:
            return
        self.ended += 1
        left = (time.perf_counter() - self.began) / self.ended * (self.fresh - self.ended)
        accuracy = percent(result["accuracy"]["head"])
        say(
            self.console,
            f"{self.ended}/{self.fresh}  {job.setting}, seed {job.seed}: {accuracy} by head  left {duration(left)}",
        )


def say(console: Console, text: str) -> None:
    """Print a line as it is; only a terminal folds it, between words."""
    console.print(text, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def run_verdict(result: Result) -> str:
    """Three lines: how good, whether that is anything, and at what cost; then what was written."""
    summary: dict[str, Any] = result.summary
    said = {
        "head": "by head",
        "prototype": "by the nearest prototype",
        "prototype_all": "among all classes",
        "prototype_own": "among own classes",
    }
    accuracies = {way: spread for way, spread in summary["accuracy"].items() if spread}
    told = (
        ", ".join(f"{percent(spread)} {said.get(way, way)}" for way, spread in accuracies.items())
        or "nothing to test on"
    )
    best = max((spread["mean"] for spread in accuracies.values()), default=0.0)
    majority = summary["majority"] or 0.0
    gain = 100 * (best - majority)
    if any(value is None or value != value for value in summary["loss"].values()):
        learned = "but the loss is not finite: the run has diverged. Try a smaller train.lr, or train.clip"
    elif majority > 0.99:
        learned = "there is nothing to beat"
    elif gain > 0:
        learned = f"this is {'only ' if gain < 5 else ''}{gain:.1f} points better"
    else:
        learned = "this is no better: look at the loss, train.lr and run.rounds"
    if summary["rejected"]:
        learned += f". {summary['rejected']:,} uploads were rejected; rounds.jsonl says why"
    shared = summary["global"]["accuracy"]
    server = f" The server's own model: {100 * shared:.1f} % on the balanced test set." if shared is not None else ""
    own = summary["personal"]
    whose = "the last round's clients'" if own["clients"] == "round" else "the clients'"
    if own["v"] is not None:
        equal, alike = (f"{100 * own[key]:.1f} % ± {100 * own[f'{key}_std']:.1f}" for key in ("v", "l"))
        held = f"{equal} on the classes they hold, {alike} if these count as often as they hold them"
        server += f" On the balanced test set {whose} latest models have {held}."
    cost, seconds = summary["cost"], summary["seconds"]
    lines = [
        f"{summary['method']} on {result.state.members.title} after {many(summary['rounds'], 'round')}: {told} "
        f"(± is the spread over {many(summary['clients'], 'client')}).",
        f"Always answering a client's commonest class gives {100 * majority:.1f} %; {learned}.{server}",
        f"A round sends on average {cost['up_params']:,} numbers up from all clients and {cost['down_params']:,} down; "
        f"{many(summary['rounds'], 'round')} took {duration(seconds['total'])} ({seconds['per_round']:.2f} s each).",
    ]
    if result.folder:
        files = ", ".join(
            sorted(
                path.name + ("/" if path.is_dir() else "")
                for path in result.folder.iterdir()
                if not path.name.startswith(".")
            )
        )
        lines.append(f"Written to {result.folder}: {files}")
    return "\n".join(lines)
