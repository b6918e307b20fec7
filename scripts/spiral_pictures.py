"""FedNH's section 3.1 (Dai et al. 2023): its Fig. 1, 2 and 5, and the tables of docs/results/fednh.md.

    python scripts/spiral_pictures.py [RUNS]

A free head is trained; a uniform head (fednh with rho = 1) keeps its initial values. Centralised (Fig. 1), one client
has all data and trains as in the authors' notebook. Federated (Fig. 2), there are 100 clients, Dirichlet 0.3, a tenth
of them per round, with the paper's settings; batch and clipping are those of the authors' other runs. Runs go to RUNS
(default: runs/spiral), pictures to docs/pictures, numbers to docs/results/data/fednh-spiral.json, tables to the screen.
About a quarter of an hour on an idle core.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from series import result_of

from protofed import Result
from protofed.core import Net, Params
from protofed.data.sources import SOURCES
from protofed.experiment.results import State
from protofed.measures.question import state_with_data
from protofed.pictures.spiral import SpiralPanel, embedding_panel, input_panel, write_spirals
from protofed.training import take_part

DOCS = Path(__file__).parents[1] / "docs"
FIGURES = DOCS / "results" / "data" / "fednh-spiral.json"

TRAIN = (
    "net.name=mlp_spiral train.lr=0.1 train.momentum=0.9 train.weight_decay=1e-5 train.decay=0.99 run.eval_every=500 "
    "run.checkpoint_every=500"
)
CENTRALISED = f"{TRAIN} partition.name=pooled run.rounds=201 train.batch=5000"
FEDERATED = (
    f"{TRAIN} data.name=spiral partition.name=dirichlet partition.alpha=0.3 data.clients=100 run.sample=0.1 "
    "train.epochs=5 train.batch=64 train.clip=10"
)
UNIFORM = "method.name=fednh method.rho=1.0"
CENTRALISED_HEADS = {
    "free": "method.name=local",
    "uniform": f"{UNIFORM} method.learn_scale=false",
    "uniform, s learned": UNIFORM,
}
FEDERATED_HEADS = {
    "free": "method.name=fedavg method.weights=equal",
    "free, averaged by size": "method.name=fedavg",
    "uniform": f"{UNIFORM} method.learn_scale=false",
    "uniform, s learned": UNIFORM,
    "uniform, s learned from 10": f"{UNIFORM} method.scale=10.0",
}
DATA = {"balanced": "spiral", "imbalanced": "spiral_imbalanced"}
CENTRALISED_SEEDS, FEDERATED_SEEDS = 5, 3
ROUNDS = (20, 60, 200)
"""Of the federated runs. The paper does not state the number for Fig. 2; its other runs have 200."""
DRAWN_ROUNDS, DRAWN_HEADS = (20, 60), ("free", "uniform")
"""Those that the pictures show, with seed 0."""

NOTEBOOK = {
    "balanced, free": [98, 100, 100, 100, 100, 100],
    "balanced, uniform": [100, 100, 100, 100, 100, 100],
    "imbalanced, free": [100, 100, 1, 0, 100, 0],
    "imbalanced, uniform": [100, 100, 100, 100, 99, 83],
}
"""Printed in the authors' notebook (examples/motivation_examples.ipynb): correct answers of each class, of 100 each."""


def finished_run(out: Path, words: str) -> Result:
    """The run in this folder; it is run if needed."""
    result_of(out, None, words)
    return Result.load(out)


def make_panel(title: str, state: State, net: Net, params: Params) -> SpiralPanel:
    """A model's embeddings of the test set, and the rows of its head."""
    return embedding_panel(title, state.config.method, net, params, SOURCES["spiral"]("").test)


def class_directions(panel: SpiralPanel) -> torch.Tensor:
    """The mean direction of each class [classes, 2]."""
    z, y = F.normalize(torch.from_numpy(panel.z)), torch.from_numpy(panel.y)
    return F.normalize(torch.stack([z[y == label].mean(0) for label in range(6)]))


def class_accuracies(panel: SpiralPanel) -> list[float]:
    """The percentage of each class that has the largest product with its own row of the head."""
    correct = (panel.z @ panel.prototypes.T).argmax(1) == panel.y
    return [100 * float(correct[panel.y == label].mean()) for label in range(6)]


def degrees(cosines: torch.Tensor) -> np.ndarray:
    """The angles of cosines."""
    return np.degrees(np.arccos(cosines.clamp(-1, 1).numpy()))


def smallest_angle(points: torch.Tensor) -> tuple[float, list[int]]:
    """The smallest angle between two rows, in degrees, and the two rows."""
    unit = F.normalize(points)
    angles = degrees(unit @ unit.T) + 360 * np.eye(len(points))
    return float(angles.min()), [int(at) for at in np.unravel_index(angles.argmin(), angles.shape)]


def rounded(values: Iterable[float], digits: int = 1) -> list[float]:
    """The values with so many digits after the point."""
    return [round(float(value), digits) for value in values]


def centralised(runs: Path) -> tuple[list[dict[str, Any]], list[SpiralPanel]]:
    """Fig. 1: the figures of every run, and a panel for each dataset and drawn head."""
    rows, panels = [], []
    for about, data in DATA.items():
        for head, words in CENTRALISED_HEADS.items():
            for seed in range(CENTRALISED_SEEDS):
                out = runs / f"{about}-{head}-{seed}".replace(", ", "-").replace(" ", "-")
                state = finished_run(out, f"{CENTRALISED} run.seed={seed} data.name={data} {words}").state
                model = state.model(0)
                panel = make_panel(f"{head} head, {about}", state, model.net, model.params)
                panels += [panel] if seed == 0 and head in DRAWN_HEADS else []
                by_class = class_accuracies(panel)
                lengths = np.linalg.norm(panel.prototypes, axis=1)
                apart, nearest = smallest_angle(torch.from_numpy(panel.prototypes))
                figures = {
                    "accuracy": round(float(np.mean(by_class)), 1),
                    "by class": rounded(by_class),
                    "class means": round(smallest_angle(class_directions(panel))[0], 1),
                    "prototypes": round(apart, 1),
                    "nearest prototypes": nearest,
                    "shortest prototype": round(float(lengths.min() / lengths.max()), 2),
                }
                rows.append({"data": about, "head": head, "seed": seed, **figures})
    return rows, panels


def federated(runs: Path) -> tuple[list[dict[str, Any]], list[SpiralPanel]]:
    """Fig. 2: the figures of every run, and two clients for each drawn number of rounds and head.

    Angles are between two clients of the last round, after one more round of local training; they are means over
    all pairs of these clients. Class means are those of a class that both clients hold, or that one of them lacks.
    """
    rows, panels = [], []
    for rounds in ROUNDS:
        for head, words in FEDERATED_HEADS.items():
            for seed in range(FEDERATED_SEEDS):
                out = runs / f"federated-{rounds}-{head}-{seed}".replace(", ", "-").replace(" ", "-")
                result = finished_run(out, f"{FEDERATED} run.rounds={rounds} run.seed={seed} {words}")
                clients = trained_clients(result, f"{head} head, {rounds} rounds")
                drawn = seed == 0 and rounds in DRAWN_ROUNDS and head in DRAWN_HEADS
                panels += [panel for panel, _ in clients[:2]] if drawn else []
                figures = {"server": round(100 * result.summary["global"]["accuracy"], 1), **angles_between(clients)}
                rows.append({"rounds": rounds, "head": head, "seed": seed, **figures})
    return rows, panels


def trained_clients(result: Result, about: str) -> list[tuple[SpiralPanel, np.ndarray]]:
    """The clients of the last round after one more round of local training, and which classes each holds [classes]."""
    state, method = state_with_data(result), result.state.config.method
    clients = []
    for number in result.rounds[-1]["clients"]:
        client = state.members.client(state.config.run.seed, state.config.run.rounds, number)
        down = method.broadcast(state.server, number)
        trained, _ = take_part(method, client, state.kept[number], down, state.config.train)
        holds = torch.bincount(client.data.labels, minlength=6) > 0
        clients.append((make_panel(f"{about}, client {number}", state, client.net, trained.params), holds.numpy()))
    return clients


def angles_between(clients: Sequence[tuple[SpiralPanel, np.ndarray]]) -> dict[str, float]:
    """Mean angles in degrees over all pairs of clients."""
    columns: dict[str, list[float]] = {"class of both": [], "other class": [], "prototypes": []}
    for (a, a_holds), (b, b_holds) in combinations(clients, 2):
        both = a_holds & b_holds
        angles = degrees((class_directions(a) * class_directions(b)).sum(1))
        columns["class of both"] += angles[both].tolist()
        columns["other class"] += angles[~both].tolist()
        a_rows, b_rows = (F.normalize(torch.from_numpy(panel.prototypes)) for panel in (a, b))
        columns["prototypes"] += degrees((a_rows * b_rows).sum(1)).tolist()
    return {name: round(float(np.mean(column)), 1) for name, column in columns.items()}


def data_panels() -> list[SpiralPanel]:
    """Fig. 5: the training sets and the test set."""
    sets = {f"training set, {about}": SOURCES[name]("").train for about, name in DATA.items()}
    sets["test set"] = SOURCES["spiral"]("").test
    return [input_panel(title, [examples]) for title, examples in sets.items()]


def tables(figures: dict[str, Any]) -> str:
    """The tables of docs/results/fednh.md. A cell has a value per seed."""

    def cell(rows: Sequence[dict[str, Any]], key: str, form: str) -> str:
        return ", ".join(form.format(row[key]) for row in rows)

    lines = [
        "| data | head | accuracy in % | of each class, mean over seeds | authors' notebook, one seed |",
        "|---|---|---|---|---|",
    ]
    groups = [
        (about, head, [row for row in figures["centralised"] if (row["data"], row["head"]) == (about, head)])
        for about in DATA
        for head in CENTRALISED_HEADS
    ]
    for about, head, rows in groups:
        by_class = ", ".join(f"{value:.0f}" for value in np.mean([row["by class"] for row in rows], 0))
        authors = figures["notebook"].get(f"{about}, {head}", [])
        shown = f"{np.mean(authors):.1f}: {', '.join(map(str, authors))}" if authors else ""
        lines.append(f"| {about} | {head} | {cell(rows, 'accuracy', '{:.1f}')} | {by_class} | {shown} |")
    lines += [
        "",
        "| data | head | smallest angle between class means | between prototypes | shortest / longest prototype |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {about} | {head} | {cell(rows, 'class means', '{:.0f}')} | {cell(rows, 'prototypes', '{:.0f}')} "
        f"| {cell(rows, 'shortest prototype', '{:.2f}')} |"
        for about, head, rows in groups
    ]
    lines += [
        "",
        "| rounds | head | server in % | means of a class both hold | of one they do not | prototypes |",
        "|---|---|---|---|---|---|",
    ]
    for rounds in ROUNDS:
        for head in FEDERATED_HEADS:
            rows = [row for row in figures["federated"] if (row["rounds"], row["head"]) == (rounds, head)]
            cells = " | ".join(
                cell(rows, key, "{:.1f}") for key in ("server", "class of both", "other class", "prototypes")
            )
            lines.append(f"| {rounds} | {head} | {cells} |")
    return "\n".join(lines)


def main(runs: Path) -> None:
    """Make all figures and pictures."""
    write_spirals(data_panels(), DOCS / "pictures" / "spiral-data.png")
    one_client, one_client_panels = centralised(runs)
    write_spirals(one_client_panels, DOCS / "pictures" / "spiral-centralised.png")
    clients, client_panels = federated(runs)
    write_spirals(client_panels, DOCS / "pictures" / "spiral-federated.png")
    figures = {"notebook": NOTEBOOK, "centralised": one_client, "federated": clients}
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(tables(figures))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/spiral"))
