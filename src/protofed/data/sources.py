"""Datasets by name; this is the only registry."""

from __future__ import annotations

from functools import partial
from importlib import util
from pathlib import Path

import numpy as np

from protofed.data import generated, images, tables
from protofed.data.dataset import Dataset, Source
from protofed.data.partitions.base import stratified_share
from protofed.draws import random_state
from protofed.examples import Examples


def _digits(where: Path) -> Dataset:
    """A fifth of each class is the test set, the same for every seed: it stands in for a published split."""
    # The file that sklearn.datasets.load_digits reads: importing that takes longer than the first round.
    spec = util.find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    x, y = table[:, :-1].reshape(-1, 1, 8, 8).astype(np.uint8), table[:, -1]
    test = stratified_share(y, 0.2, random_state("digits", "split"))
    train, exam = (Examples.of(x[part], y[part], 16.0, 0.3047, 0.3757) for part in (~test, test))
    return Dataset("digits", train, exam, tuple(range(10)))


def _subset(name: images.Images) -> partial[Dataset]:
    return partial(images.whole_or_subset, name)


SOURCES: dict[str, Source] = {
    "cifar10": Source("32x32x3 photographs of 10 things (10,000 / 2,000 of 50,000 / 10,000).", _subset(images.CIFAR10)),
    "cifar100": Source("32x32x3 photographs of 100 things (5,000 / 1,000).", _subset(images.CIFAR100)),
    "digit5": Source("Digits of five domains at 32x32x3: mnist, usps, svhn, mnist_m, synthdigits.", images.digit5),
    "digits": Source("8x8 handwritten digits of scikit-learn (1,442 / 355). Always there.", _digits),
    "femnist": Source("28x28 handwritten digits of 12 clients (5,997).", images.femnist),
    "heart_disease": Source("13 columns of 920 patients of four hospitals, with missing values.", tables.heart_disease),
    "mnist": Source("28x28 handwritten digits (60,000 / 10,000).", images.mnist),
    "mnist_m": Source("Digits on photographs, 32x32x3 (5,000 / 1,500).", _subset(images.MNIST_M)),
    "npz": Source(
        "Your own file: data.root is an .npz with x, y and maybe x_test, y_test, classes, client.", tables.npz
    ),
    "office_caltech10": Source("64x64x3 photographs of 10 things in four domains (2,533).", images.office_caltech10),
    "pets": Source("64x64x3 photographs of 20 breeds of cats and dogs (1,600 / 400).", images.PETS),
    "spiral": Source("FedNH's six spiral arms in the plane, balanced (18,000 / 18,000).", generated.spiral),
    "spiral_imbalanced": Source("The same, with 3,000 to 93 training points an arm.", generated.spiral_imbalanced),
    "svhn": Source("House numbers, 32x32x3 (4,977 / 1,434).", _subset(images.SVHN)),
    "synthdigits": Source("Printed digits, re-made from free fonts, 32x32x3 (5,000 / 1,500).", images.SYNTHDIGITS),
    "synthetic": Source("Logistic models of 30 clients, phi1 = phi2 = 1, 60 inputs.", generated.synthetic),
    "tiny_imagenet": Source("64x64x3 photographs of 25 of 200 things (5,000 / 1,250).", images.tiny_imagenet),
    "uci_har": Source("Movements of 30 people: windows of 9 signals, 6 activities (10,299).", tables.uci_har),
    "usps": Source("16x16 handwritten digits (7,291 / 2,007).", images.USPS),
}
