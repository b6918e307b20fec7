"""Write the figures of docs/results/data/speed.json into docs/performance.md and README.md, between their markers.

    python benchmarks/speed.py --peers --json docs/results/data/speed.json
    python scripts/speed_page.py

`tests/test_speed.py` compares the pages with the file.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TOP = Path(__file__).parents[1]
sys.path.insert(0, str(TOP / "benchmarks"))
from speed import PACKAGES, Work, goals, is_reached, seconds  # noqa: E402

DATA = TOP / "docs" / "results" / "data" / "speed.json"
BEGIN, END = "<!-- speed: begin -->", "<!-- speed: end -->"


def performance(found: Mapping[str, Any]) -> str:
    """The tables of both workloads."""
    machine, parts = found["machine"], []
    if found["only_clients"]:
        parts.append(_wrapped(f"**Preliminary: only the first {found['only_clients']} clients of each workload.**"))
    loads = [when[0] for task in found["workloads"].values() for when in task["load"].values()]
    parts.append(
        _wrapped(
            f"{found['turns']} timed rounds of each, in turns, on {machine['cores']} cores ({machine['processor']}), "
            f"torch {machine['torch']}, {found['date']}; load average {min(loads):.1f} to {max(loads):.1f}. Seconds are "
            "medians, with the smallest and largest CPU seconds in brackets."
        )
    )
    for name, task in found["workloads"].items():
        (work,) = {Work(**counts) for counts in task["work"].values()}
        parts.append(f"### {name}: {task['title']}")
        parts.append(
            _wrapped(
                f"{task['clients']} clients, {task['images']:,} images, batch {task['batch']}; counted for each of "
                f"them: {work.trainings} local trainings and {work.steps:,} optimiser steps per round."
            )
        )
        floor = seconds(task)["plain loop, FedAvg"]["train_cpu"]
        rows = ["| | CPU s | wall s | CPU, compared with the plain loop | evaluation, CPU s |", "|---|---|---|---|---|"]
        for trainer, times in seconds(task).items():
            values = [value for value in task["rounds"][trainer]["train_cpu"] if value is not None]
            used = f"{times['train_cpu']:.2f} ({min(values):.2f} to {max(values):.2f})" if values else ""
            ratio = f"{times['train_cpu'] / floor:.2f}" if values else ""
            tested = f"{times['evaluate_cpu']:.2f}" if times["evaluate_cpu"] else ""
            rows.append(f"| {trainer} | {used} | {times['train_wall']:.2f} | {ratio} | {tested} |")
        parts.append("\n".join(rows))
        rows = ["| ratio | | goal | |", "|---|---|---|---|"]
        for text, goal in goals(name, task).items():
            limit = f"at most {goal['at_most']}" if "at_most" in goal else f"at least {goal['at_least']}"
            rows.append(f"| {text} | {goal['ratio']:.2f} | {limit} | {'reached' if is_reached(goal) else 'missed'} |")
        parts.append("\n".join(rows))
        parts.append(_profile_table(task))
    return "\n\n".join(parts)


def _profile_table(task: Mapping[str, Any]) -> str:
    """Where the time of a round goes: a column per trainer."""
    profiles, times = task["profiles"], seconds(task)
    rows = [f"| CPU µs per image | {' | '.join(profiles)} |", "|---" * (len(profiles) + 1) + "|"]
    for kind in next(iter(profiles.values())):
        rows.append(f"| {kind} | {' | '.join(f'{profile[kind]:.0f}' for profile in profiles.values())} |")
    totals = [1e6 * times[name]["train_cpu"] / task["images"] for name in profiles]
    rows.append(f"| a round without the profiler | {' | '.join(f'{total:.0f}' for total in totals)} |")
    return "\n".join(rows)


def readme(found: Mapping[str, Any]) -> str:
    """The sentences about speed."""
    sentences = []
    for name, words in (("W", "with a small net (FedProto's MNIST round)"), ("P", "with a net of 1.6 million weights")):
        times = seconds(found["workloads"][name])
        plain = times["plain loop, FedAvg"]["train_cpu"] / _best_engine(times, "FedAvg")
        peers = {
            peer: min(value["train_cpu"] / _best_engine(times, key.split(", ")[-1]) for key, value in of_peer.items())
            for peer in PACKAGES
            if (of_peer := {key: value for key, value in times.items() if key.startswith(peer)})
        }
        listed = ", ".join(f"{peer} {ratio:.1f}" for peer, ratio in peers.items())
        sentences.append(
            f"{words[0].upper()}{words[1:]}, a plain loop in torch takes {plain:.1f} times the CPU seconds of protofed "
            f"per round, without evaluation{f', {listed} times (each with the method it has)' if listed else ''}."
        )
    if found["only_clients"]:
        sentences.append(f"(Preliminary: measured with {found['only_clients']} clients only.)")
    return _wrapped(" ".join(sentences))


def _best_engine(times: Mapping[str, Mapping[str, float | None]], method: str) -> float:
    """The CPU seconds of our best engine with a method."""
    ours = {key: value["train_cpu"] for key, value in times.items() if key.startswith(("loop", "stacked"))}
    return min(value for key, value in ours.items() if value is not None and key.endswith(method))


PAGES = {"docs/performance.md": performance, "README.md": readme}


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def with_figures(text: str, page: str, found: Mapping[str, Any]) -> str:
    """A page with these figures between its markers."""
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise SystemExit(f"{page} must have one pair of {BEGIN} and {END}.")
    return pattern.sub(lambda _: f"{BEGIN}\n{PAGES[page](found)}\n{END}", text)


def main() -> None:
    found = json.loads(DATA.read_text(encoding="utf-8"))
    for page in PAGES:
        path = TOP / page
        path.write_text(with_figures(path.read_text(encoding="utf-8"), page, found), encoding="utf-8")


if __name__ == "__main__":
    main()
