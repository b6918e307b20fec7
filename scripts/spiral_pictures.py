"""FedNH's section 3.1 (Dai et al. 2023): the pictures of Fig. 1 and 2, and the angles between classes.

    python scripts/spiral_pictures.py [FOLDER]

A free head is trained; a uniform head (fednh with rho = 1) keeps its initial values. Centralised: one client has all
data. Federated: 100 clients, Dirichlet 0.3, a tenth of them per round. Runs go to runs/spiral, pictures to FOLDER
(default: docs/pictures). A few minutes.
"""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from series import result_of

from protofed import Result
from protofed.core import Net, Params
from protofed.data.sources import SOURCES
from protofed.measures.question import state_with_data
from protofed.pictures.spiral import SpiralPanel, write_spirals
from protofed.training import take_part

TRAIN = (
    "net.name=mlp_spiral net.bias=false train.batch=64 train.lr=0.1 train.momentum=0.9 train.weight_decay=1e-5 "
    "train.decay=0.99 train.clip=1 run.eval_every=10"
)
CENTRALISED = f"{TRAIN} partition.name=pooled run.rounds=30"
FEDERATED = (
    f"{TRAIN} data.name=spiral partition.name=dirichlet partition.alpha=0.3 data.clients=100 run.sample=0.1 "
    "train.epochs=5 run.rounds=20"
)
HEADS = {"free": "", "uniform": "method.name=fednh method.rho=1.0 method.scale=10.0"}
SEEDS = 3


def finished_run(name: str, words: str) -> Result:
    """The run with this name; it is run if needed."""
    out = Path("runs/spiral") / name
    result_of(out, None, words)
    return Result.load(out)


def make_panel(title: str, net: Net, params: Params) -> SpiralPanel:
    """A model's embeddings of the test set, and the rows of its head."""
    z, y = net.features(params, SOURCES["spiral"](Path()).test)
    return SpiralPanel(title, z.numpy(), y.numpy(), params["head.out.weight"].numpy())


def class_directions(panel: SpiralPanel) -> torch.Tensor:
    """The mean direction of each class [classes, 2]."""
    z, y = F.normalize(torch.from_numpy(panel.z)), torch.from_numpy(panel.y)
    return F.normalize(torch.stack([z[y == label].mean(0) for label in range(6)]))


def degrees(cosines: torch.Tensor) -> np.ndarray:
    """The angles of cosines."""
    return np.degrees(np.arccos(cosines.clamp(-1, 1).numpy()))


def nearest_angles(points: torch.Tensor) -> str:
    """The angle of every row to the nearest other row, in degrees."""
    angles = degrees(F.normalize(points) @ F.normalize(points).T) + 360 * np.eye(len(points))
    return ", ".join(f"{angle:.0f}" for angle in angles.min(1))


def centralised(folder: Path) -> None:
    """Fig. 1, and a table of angles."""
    panels = []
    print("| data | head | seed | accuracy | class means: degrees to the nearest other | prototypes |")
    print("|---|---|---|---|---|---|")
    for data, about in (("spiral", "balanced"), ("spiral_imbalanced", "imbalanced")):
        for head, words in HEADS.items():
            for seed in range(SEEDS):
                words = words or "method.name=local"
                result = finished_run(
                    f"{about}-{head}-{seed}", f"{CENTRALISED} run.seed={seed} data.name={data} {words}"
                )
                state, method = result.state, result.state.config.method
                params = method.receive(state.kept[0], method.broadcast(state.server, 0))
                panel = make_panel(f"{head} head, {about}", state.members.nets[0], params)
                panels += [panel] if seed == 0 else []
                print(
                    f"| {about} | {head} | {seed} | {100 * result.summary['accuracy']['head']['mean']:.1f} % "
                    f"| {nearest_angles(class_directions(panel))} | {nearest_angles(params['head.out.weight'])} |"
                )
    write_spirals(panels, folder / "spiral-centralised.png")


def federated(folder: Path) -> None:
    """Fig. 2, and a table of angles between clients."""
    panels = []
    print("\nDegrees between two clients of the last round, after one more round of local training:\n")
    print(
        "| head | seed | server | means of a class both hold | of one they do not | prototypes |\n|---|---|---|---|---|---|"
    )
    for head, words in HEADS.items():
        for seed in range(SEEDS):
            words = words or "method.name=fedavg"
            result = finished_run(f"federated-{head}-{seed}", f"{FEDERATED} run.seed={seed} {words}")
            state, method = state_with_data(result), result.state.config.method
            clients = []
            for number in result.rounds[-1]["clients"]:
                client = state.members.client(seed, state.config.run.rounds, number)
                down = method.broadcast(state.server, number)
                trained, _ = take_part(method, client, state.kept[number], down, state.config.train)
                has_class = torch.bincount(client.data.labels, minlength=6) > 0
                panel = make_panel(f"{head} head, client {number}", client.net, trained.params)
                clients.append((panel, has_class.numpy()))
            panels += [panel for panel, _ in clients[:2]] if seed == 0 else []
            columns: list[list[float]] = [[], [], []]
            for (a, a_has), (b, b_has) in combinations(clients, 2):
                angles = degrees((class_directions(a) * class_directions(b)).sum(1))
                columns[0] += angles[a_has & b_has].tolist()
                columns[1] += angles[~(a_has & b_has)].tolist()
                a_rows, b_rows = (F.normalize(torch.from_numpy(panel.prototypes)) for panel in (a, b))
                columns[2] += degrees((a_rows * b_rows).sum(1)).tolist()
            cells = " | ".join(f"{np.mean(column):.1f}" for column in columns)
            print(f"| {head} | {seed} | {100 * result.summary['global']['accuracy']:.1f} % | {cells} |")
    write_spirals(panels, folder / "spiral-federated.png")


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")
    centralised(folder)
    federated(folder)
