"""Five newcomers that join a finished run on MNIST, compared with training alone: the table of docs/join.md.

    python scripts/newcomers.py RUN

Each newcomer has three classes. None of the run's clients has its training images. It has 200 test images per class.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from protofed import Result
from protofed.data.sources import SOURCES
from protofed.draws import random_state
from protofed.models.join import Newcomer, join

NEWCOMERS, WAYS, TEST = 5, 3, 200


def newcomer(result: Result, number: int, shots: int, epochs: int) -> Newcomer:
    """A newcomer with `shots` training images per class. Its number decides its classes and test images."""
    data, draw = SOURCES["mnist"](result.state.config.data.root), random_state("newcomer", number)
    free = np.ones(len(data.train), dtype=bool)
    for part in result.state.members.parts:
        free[part.train] = False
    labels, test_labels = data.train.labels.numpy(), data.test.labels.numpy()
    classes = np.sort(draw.choice(data.classes, WAYS, replace=False))
    train = np.concatenate([draw.permutation(np.flatnonzero((labels == label) & free))[:shots] for label in classes])
    test = np.concatenate([draw.permutation(np.flatnonzero(test_labels == label))[:TEST] for label in classes])
    return join(
        result,
        (data.train.x.numpy()[train], labels[train]),
        (data.test.x.numpy()[test], test_labels[test]),
        epochs=epochs,
        seed=number,
    )


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    result = Result.load(folder)
    print("| images per class | epochs | joined, by head | joined, by prototype | alone, by head | gain |")
    print("|---|---|---|---|---|---|")
    for shots in (10, 20, 50):
        for epochs in (10, 30):
            joined = [newcomer(result, number, shots, epochs) for number in range(NEWCOMERS)]
            head, prototype, alone = (
                100 * sum(accuracies) / NEWCOMERS
                for accuracies in (
                    [each.accuracy["head"] for each in joined],
                    [each.accuracy["prototype"] for each in joined],
                    [each.alone for each in joined],
                )
            )
            print(f"| {shots} | {epochs} | {head:.1f} % | {prototype:.1f} % | {alone:.1f} % | {head - alone:+.1f} |")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
