"""What a run gave: the figures of result.json, the rows of rounds.jsonl and of clients.csv."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protofed import __version__
from protofed.config import Config
from protofed.engines.engine import Report, Score
from protofed.federation import Federation
from protofed.measures.accuracy import Reporting, over_clients

Row = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What a run gave: `summary` is result.json, `rounds` rounds.jsonl, `clients` clients.csv."""

    summary: dict[str, Any]
    rounds: list[Row]
    clients: list[Row]
    folder: Path | None


def ways(scores: Sequence[Score]) -> list[str]:
    """Every way to predict that the method has, the two standard ones first."""
    return list(dict.fromkeys(["head", "prototype", *(way for score in scores for way in score.correct)]))


def spread(scores: Sequence[Score], way: str, reporting: Reporting) -> dict[str, float] | None:
    """Mean and standard deviation over clients of one way to predict."""
    having = [score for score in scores if way in score.correct]
    return over_clients([score.correct[way] for score in having], [score.total for score in having], reporting)


def accuracies(scores: Sequence[Score], reporting: Reporting) -> Row:
    """The accuracies of a round, by way of predicting; null where nothing was tested."""
    row: Row = {}
    for way in ways(scores):
        over = spread(scores, way, reporting)
        row |= {f"accuracy_{way}": over and over["mean"], f"accuracy_{way}_std": over and over["std"]}
    return row


def mean_terms(reports: Sequence[Report]) -> dict[str, float]:
    """Each term of the loss, averaged over the examples that all clients saw."""
    seen = sum(report.seen for report in reports)
    names = dict.fromkeys(name for report in reports for name in report.terms)
    return {name: sum(report.terms.get(name, 0.0) for report in reports) / seen for name in names} if seen else {}


def summary(config: Config, federation: Federation, rounds: Sequence[Row], scores: Sequence[Score]) -> Row:
    """The figures of result.json; null is what the method does not have."""

    def total(key: str) -> float:
        return float(sum(row[key] for row in rounds))

    return {
        "method": config.method_name,
        "dataset": federation.dataset,
        "seed": config.run.seed,
        "rounds": len(rounds),
        "clients": len(federation),
        "accuracy": {way: spread(scores, way, config.eval.reporting) for way in ways(scores)},
        "majority": federation.majority(),
        "global": {"accuracy": rounds[-1]["accuracy_global"]},
        "personal": {"v": None, "l": None, "all": None},
        "miou": {"mean": None, "per_class": None},
        "loss": rounds[-1]["loss"],
        "cost": {
            **{key: round(total(key) / len(rounds)) for key in ("up_params", "down_params", "up_counts")},
            **{key: round(total(key)) for key in ("up_bytes", "down_bytes")},
        },
        "rejected": sum(len(row["rejected"]) for row in rounds),
        "seconds": {"total": total("seconds"), "per_round": total("seconds") / len(rounds)},
        "engine": config.engine.name,
        "versions": {
            "protofed": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def client_rows(federation: Federation, scores: Sequence[Score]) -> list[Row]:
    """The rows of clients.csv."""

    def row(score: Score) -> Row:
        train = federation.train[score.client]
        return {
            "client": score.client,
            "net": federation.nets[score.client].name,
            "classes": " ".join(str(label) for label in train.labels.unique().tolist()),
            "train": len(train),
            "test": score.total,
            **{
                f"accuracy_{way}": score.correct[way] / score.total if way in score.correct else None
                for way in ways(scores)
            },
        }

    return [row(score) for score in scores]
