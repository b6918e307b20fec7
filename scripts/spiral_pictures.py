"""FedNH's section 3.1 (Dai et al. 2023): the pictures of Fig. 1 and 2, and the angles between classes.

    python scripts/spiral_pictures.py [FOLDER]

A free head is trained; a uniform one (fednh with rho = 1) stays where it starts. Centralised: one client has all the
data. Federated: 100 clients, Dirichlet 0.3, a tenth of them a round. Runs go to runs/spiral, pictures to FOLDER
(docs/pictures). A few minutes.
"""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from series import finished

from protofed import Result
from protofed.core import Net, Params
from protofed.data.sources import SOURCES
from protofed.experiment.members import Members
from protofed.pictures.spiral import SpiralPanel, write_spirals
from protofed.training import take_part

TRAIN = (
    "net.name=mlp_spiral net.bias=false train.batch=64 train.lr=0.1 train.momentum=0.9 train.weight_decay=1e-5 "
    "train.decay=0.99 train.clip=1 run.eval_every=10"
)
ALONE = f"{TRAIN} partition.name=pooled run.rounds=30"
TOGETHER = (
    f"{TRAIN} data.name=spiral partition.name=dirichlet partition.alpha=0.3 data.clients=100 run.sample=0.1 "
    "train.epochs=5 run.rounds=20"
)
HEADS = {"free": "", "uniform": "method.name=fednh method.rho=1.0 method.scale=10.0"}
SEEDS = 3


def played(name: str, words: str) -> Result:
    out = Path("runs/spiral") / name
    finished(out, None, words)
    return Result.load(out)


def panel(title: str, net: Net, params: Params) -> SpiralPanel:
    """A model's embeddings of the balanced test set, and the rows of its head."""
    z, y = net.features(params, SOURCES["spiral"](Path()).test)
    return SpiralPanel(title, z.numpy(), y.numpy(), params["head.out.weight"].numpy())


def directions(shown: SpiralPanel) -> torch.Tensor:
    """The mean direction of each class [classes, 2]."""
    z, y = F.normalize(torch.from_numpy(shown.z)), torch.from_numpy(shown.y)
    return F.normalize(torch.stack([z[y == label].mean(0) for label in range(6)]))


def degrees(cosines: torch.Tensor) -> np.ndarray:
    return np.degrees(np.arccos(cosines.clamp(-1, 1).numpy()))


def nearest(points: torch.Tensor) -> str:
    """For every row the angle to the nearest other row."""
    apart = degrees(F.normalize(points) @ F.normalize(points).T) + 360 * np.eye(len(points))
    return ", ".join(f"{angle:.0f}" for angle in apart.min(1))


def centralised(folder: Path) -> None:
    panels = []
    print("| data | head | seed | accuracy | class means: degrees to the nearest other | prototypes |")
    print("|---|---|---|---|---|---|")
    for data, about in (("spiral", "balanced"), ("spiral_imbalanced", "imbalanced")):
        for head, words in HEADS.items():
            for seed in range(SEEDS):
                words = words or "method.name=local"
                result = played(f"{about}-{head}-{seed}", f"{ALONE} run.seed={seed} data.name={data} {words}")
                state, method = result.state, result.state.config.method
                params = method.receive(state.kept[0], method.broadcast(state.server, 0))
                shown = panel(f"{head} head, {about}", state.members.nets[0], params)
                panels += [shown] if seed == 0 else []
                print(
                    f"| {about} | {head} | {seed} | {100 * result.summary['accuracy']['head']['mean']:.1f} % "
                    f"| {nearest(directions(shown))} | {nearest(params['head.out.weight'])} |"
                )
    write_spirals(panels, folder / "spiral-centralised.png")


def federated(folder: Path) -> None:
    panels = []
    print("\nDegrees between two clients of the last round, after one more round of their own:\n")
    print(
        "| head | seed | server | means of a class both hold | of one they do not | prototypes |\n|---|---|---|---|---|---|"
    )
    for head, words in HEADS.items():
        for seed in range(SEEDS):
            words = words or "method.name=fedavg"
            result = played(f"federated-{head}-{seed}", f"{TOGETHER} run.seed={seed} {words}")
            state, method = result.state, result.state.config.method
            members, found = Members.of(state.config), []  # a loaded run has no data
            for number in result.rounds[-1]["clients"]:
                client = members.client(seed, state.config.run.rounds, number)
                down = method.broadcast(state.server, number)
                trained, _ = take_part(method, client, state.kept[number], down, state.config.train)
                held = torch.bincount(client.data.labels, minlength=6) > 0
                found.append((panel(f"{head} head, client {number}", client.net, trained.params), held.numpy()))
            panels += [shown for shown, _ in found[:2]] if seed == 0 else []
            columns: list[list[float]] = [[], [], []]
            for (a, mine), (b, yours) in combinations(found, 2):
                apart = degrees((directions(a) * directions(b)).sum(1))
                columns[0] += apart[mine & yours].tolist()
                columns[1] += apart[~(mine & yours)].tolist()
                rows = (F.normalize(torch.from_numpy(shown.prototypes)) for shown in (a, b))
                columns[2] += degrees((next(rows) * next(rows)).sum(1)).tolist()
            told = " | ".join(f"{np.mean(column):.1f}" for column in columns)
            print(f"| {head} | {seed} | {100 * result.summary['global']['accuracy']:.1f} % | {told} |")
    write_spirals(panels, folder / "spiral-federated.png")


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")
    centralised(folder)
    federated(folder)
