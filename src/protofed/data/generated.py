"""Generated data: logistic models that differ from client to client, and spirals.

Readers get the data folder like all others, but do not use it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from protofed.data.dataset import Dataset, split_off_test_set
from protofed.draws import random_state
from protofed.examples import Examples


def synthetic(folder: Path, phi1: float = 1.0, phi2: float = 1.0, clients: int = 30, stream: str = "a") -> Dataset:
    """Prototype-guided FL, S1.1: y = argmax softmax(W_k x + b_k), with a model and an input distribution per client.

    W_k, b_k ~ N(u_k, 1), u_k ~ N(0, phi1); x ~ N(v_k, Sigma), Sigma_jj = j^-1.2; v_k ~ N(B_k, 1), B_k ~ N(0, phi2).
    Sizes are 50 plus a log-normal (4, 2), as in the work that the paper follows.
    """
    draw = random_state("synthetic", stream)
    sizes = 50 + draw.lognormal(4, 2, clients).astype(np.int64)
    return _logistic_models("synthetic", sizes, phi1, phi2, draw)


_FEDPROX_TEST_SIZES = (
    *(8, 18, 9, 17, 16, 50, 14, 9, 6, 19),
    *(17, 6, 9, 6, 7, 662, 6, 13, 7, 12),
    *(8, 5, 6, 44, 6, 14, 31, 45, 8, 6),
)
"""The test examples of each client in the file synthetic_1_1 that FedProx's authors published: a tenth, rounded up."""


def fedprox_synthetic(folder: Path, name: str, alpha: float, beta: float) -> Dataset:
    """FedProx's synthetic(alpha, beta): the law of `synthetic` with u_k ~ N(0, alpha^2) and B_k ~ N(0, beta^2).

    Clients have the sizes of the authors' published synthetic_1_1, up to five examples. The authors' draws cannot be
    repeated, as their generator has no seed. Ours are the first of draws 0, 1, ... in which, with alpha = beta = 1,
    59 % of the examples have the most frequent class of their client, as in the published test file.
    """
    sizes = 10 * np.array(_FEDPROX_TEST_SIZES) - 5
    return _logistic_models(name, sizes, alpha**2, beta**2, random_state("synthetic_1_1", "5"))


def _logistic_models(name: str, sizes: np.ndarray, phi1: float, phi2: float, draw: np.random.RandomState) -> Dataset:
    """The examples of clients with these sizes, by the law of `synthetic`."""
    deviations = np.arange(1, 61) ** -0.6
    xs, ys = [], []
    for size in sizes:
        model_mean, input_mean = draw.normal(0, np.sqrt(phi1)), draw.normal(0, np.sqrt(phi2))
        weights, bias = draw.normal(model_mean, 1, (10, 60)), draw.normal(model_mean, 1, 10)
        x = draw.normal(draw.normal(input_mean, 1, 60), deviations, (size, 60))
        xs.append(x.astype(np.float32))
        ys.append((x @ weights.T + bias).argmax(1))
    group = np.repeat(np.arange(len(sizes)), sizes)
    names = tuple(f"client {number}" for number in range(len(sizes)))
    return split_off_test_set(
        name, np.concatenate(xs), np.concatenate(ys), group, names, tuple(range(10)), {}, "generated"
    )


BALANCED, IMBALANCED = (3000,) * 6, (3000, 1500, 750, 375, 187, 93)
"""Points per arm of the spirals."""


def spiral(folder: Path, sizes: tuple[int, ...] = BALANCED, name: str = "spiral") -> Dataset:
    """FedNH, Sec. 3.1, as its authors' code has it: six arms with radius 1 to 10. The test set is balanced.

    The paper's formula lets arm k turn by k pi / 3 and adds noise of variance 1. The arms would then overlap, but in
    the paper's figures they are separate. In the code every arm turns by pi / 3, with uniform noise from 0 to 0.5.
    """
    train, test = (
        arms(counts, 0.5, random_state(name, part)) for counts, part in ((sizes, "train"), (BALANCED, "test"))
    )
    return Dataset(name, Examples.of(*train), Examples.of(*test), tuple(range(6)), remark="generated")


def arms(sizes: tuple[int, ...], noise: float, draw: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
    """Points [n, 2] on the arms of a spiral, and the number of the arm of each point [n].

    Point i of the n points of arm k has the angle (k + i / (n - 1)) pi / 3, plus noise between 0 and `noise` radians.
    """
    points = []
    for arm, size in enumerate(sizes):
        along = np.linspace(0, 1, size)
        angle = (arm + along) * np.pi / 3 + draw.uniform(0, noise, size)
        radius = 1 + 9 * along
        points.append(np.stack([radius * np.sin(angle), radius * np.cos(angle)], 1))
    return np.concatenate(points).astype(np.float32), np.repeat(np.arange(len(sizes)), sizes)


def spiral_imbalanced(folder: Path) -> Dataset:
    """The spiral with 3,000, 1,500, 750, 375, 187 and 93 training points per arm."""
    return spiral(folder, IMBALANCED, name="spiral_imbalanced")
