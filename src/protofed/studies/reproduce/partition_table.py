"""Prototype-guided FL's Table 1: the statistics of how data are divided among clients. Nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from protofed.data.summary import size_statistics
from protofed.experiment.config import Config
from protofed.experiment.members import Members
from protofed.experiment.recipes import recipe_file
from protofed.studies.reproduce.published import PROTOMARGIN_TABLE1

PARTITION_TABLE = "protomargin-table1"
PARTITION_TITLE = "Prototype-guided FL, Table 1: how data are divided among clients"
_DIVIDED = {"synthetic": ("protomargin-synthetic", 1), "mnist": ("protomargin-mnist", 3)}
"""Per dataset its recipe and the number of seeds; the synthetic data are the same with every seed."""
PARTITION_NOTE = (
    "Clients, classes and examples, the mean and the population standard deviation of a client's examples, and the "
    "share of all examples that have the most frequent class of their client. Nine tenths: of each client, rounded "
    "down, which is the training part of FedProx's files. The runs train on four fifths of each client. The paper "
    "does not give the share."
)


def partition_rows() -> list[dict[str, Any]]:
    """The statistics of each dataset and seed: of all examples, and of nine tenths of each client."""
    rows = []
    for data, (recipe, seeds) in _DIVIDED.items():
        for seed in range(seeds):
            members = Members.of(Config.load(recipe_file(recipe), [f"run.seed={seed}"]))
            pairs = zip(members.train, members.test, strict=True)
            labels = [torch.cat([train.labels, test.labels]) for train, test in pairs]
            counts = np.array([part.bincount(minlength=members.classes).numpy() for part in labels])
            sizes = counts.sum(1)
            rows.append(
                {
                    "dataset": data,
                    "seed": seed,
                    "classes": members.classes,
                    "all": size_statistics(sizes.tolist()),
                    "nine_tenths": size_statistics((sizes * 9 // 10).tolist()),
                    "most_frequent": float(counts.max(1).sum() / sizes.sum()),
                }
            )
    return rows


def partition_table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """The heads and lines of the table, with the paper's line after those of each dataset."""
    lines = []
    for data, paper in PROTOMARGIN_TABLE1.items():
        for row in (row for row in rows if row["dataset"] == data):
            for part, name in (("all", "all examples"), ("nine_tenths", "nine tenths")):
                about, share = row[part], f"{100 * row['most_frequent']:.0f} %" if part == "all" else ""
                numbers = [str(row["classes"]), f"{about['clients']:,}", f"{about['examples']:,}"]
                spread = [f"{about['mean']:.1f}", f"{about['std']:.1f}"]
                lines.append([f"{data}, seed {row['seed']}, {name}", *numbers, *spread, share])
        lines.append([f"{data}, paper", *paper, ""])
    return ["", "classes", "clients", "examples", "mean", "std", "most frequent class"], lines
