"""The registry of datasets by name. `SOURCES["mnist"](root)` loads one: see `dataset.Source`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from functools import partial
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np

from protofed.data import generated, images, leaf, masks, tables, voc
from protofed.data.dataset import Dataset, Source, data_folder
from protofed.data.partitions.base import stratified_share
from protofed.draws import random_state
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.plugins import Registry, label


def _digits(folder: Path) -> Dataset:
    """The digits of scikit-learn. The test set is a fifth of each class, the same for every seed, as if published."""
    # This is the file that sklearn.datasets.load_digits reads. Importing that function takes longer than a round.
    spec = util.find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    x, y = table[:, :-1].reshape(-1, 1, 8, 8).astype(np.uint8), table[:, -1]
    held_out = stratified_share(y, 0.2, random_state("digits", "split"))
    train, test = (Examples.of(x[part], y[part], 16.0, 0.3047, 0.3757) for part in (~held_out, held_out))
    return Dataset("digits", train, test, tuple(range(10)))


def _subset(file: images.ImageFile) -> partial[Dataset]:
    """The reader of a file that may have only a subset of the published dataset."""
    return partial(images.subset_or_complete, file)


@dataclass(frozen=True)
class _WithMnist(Source):
    """A source that reads mnist: from mnist.npz or, if there is none, from the four published IDX files."""

    def state(self, root: str = "") -> str:
        """As of other sources; the IDX files stand for mnist.npz."""
        instead = "mnist.npz" if images.has_mnist_idx(data_folder(root)) else ""
        others = tuple(name for name in self.files or () if name != instead)
        return Source.state(replace(self, files=others), root)


def data_source(found: Any, name: str) -> Source:
    """The source of a dataset that was found by a name outside the package: a `Source`, or a function that loads it."""
    if isinstance(found, Source):
        return found
    if not callable(found) or isinstance(found, type):
        kind = "class" if isinstance(found, type) else type(found).__name__
        raise UserError(
            f'"{name}" is a {kind}; must be a function of the data folder that returns a Dataset or a dict of arrays.'
        )

    def read(folder: Path) -> Dataset:
        loaded = found(folder) if inspect.signature(found).parameters else found()
        if isinstance(loaded, Dataset):
            return loaded
        if not isinstance(loaded, dict):
            raise UserError(
                f"{label(name)} returned a {type(loaded).__name__}; must be a Dataset, or a dict of arrays: x and y, "
                "and optionally mask, x_test, y_test, classes, client (docs/own-data.md)."
            )
        return tables.dataset_of_arrays({key: np.asarray(value) for key, value in loaded.items()}, label(name))

    return Source((inspect.getdoc(found) or "").partition("\n")[0], read, made_from=found)


_KNOWN: dict[str, Source] = {
    "cifar10": Source(
        "32x32x3 photographs of 10 classes (10,000 / 2,000 of 50,000 / 10,000).",
        _subset(images.CIFAR10),
        files=("cifar10.npz",),
    ),
    "cifar100": Source(
        "32x32x3 photographs of 100 classes (5,000 / 1,000).", _subset(images.CIFAR100), files=("cifar100.npz",)
    ),
    "digit5": _WithMnist(
        "Digits of five domains at 32x32x3: mnist, usps, svhn, mnist_m, synthdigits.",
        images.digit5,
        files=("mnist.npz", "usps.npz", "svhn.npz", "mnist_m.npz", "synthdigits_remade.npz"),
    ),
    "digits": Source("8x8 handwritten digits of scikit-learn (1,442 / 355). Always available.", _digits),
    "femnist": Source("28x28 handwritten digits of 12 clients (5,997).", images.femnist, files=("femnist_digits.npz",)),
    "heart_disease": Source(
        "13 columns of 920 patients in four hospitals, with missing values.",
        tables.heart_disease,
        files=("heart_disease.npz",),
    ),
    "leaf": Source(
        "JSON files of LEAF or FedProx: data.root is the folder with train/*.json and test/*.json.",
        leaf.leaf,
        files=None,
    ),
    "mnist": _WithMnist("28x28 handwritten digits (60,000 / 10,000).", images.mnist, files=("mnist.npz",)),
    "mnist_m": Source(
        "Digits on photographs, 32x32x3 (5,000 / 1,500).", _subset(images.MNIST_M), files=("mnist_m.npz",)
    ),
    "npz": Source(
        "Your own file: data.root is an .npz with x, y and optionally mask, x_test, y_test, classes, client.",
        tables.npz,
        files=None,
    ),
    "office_caltech10": Source(
        "64x64x3 photographs of 10 classes in four domains (2,533).",
        images.office_caltech10,
        files=("office_caltech10.npz",),
    ),
    "pets": Source(
        "64x64x3 photographs of 20 breeds of cats and dogs (1,600 / 400).", images.PETS.read, files=("pets.npz",)
    ),
    "pets_masks": Source(
        "64x64x3 photographs of 20 breeds with a class per pixel: background or breed (1,600 / 400).",
        masks.pets_masks,
        files=("pets.npz",),
    ),
    "pets_masks_macro": Source(
        "64x64x3 photographs of 20 breeds with a class per pixel: background, cat or dog (1,600 / 400).",
        partial(masks.pets_masks, macro=True),
        files=("pets.npz",),
    ),
    "spiral": Source("FedNH's six spiral arms in the plane, balanced (18,000 / 18,000).", generated.spiral),
    "spiral_imbalanced": Source(
        "FedNH's six spiral arms with 3,000 to 93 training points per arm.", generated.spiral_imbalanced
    ),
    "svhn": Source("House numbers, 32x32x3 (4,977 / 1,434).", _subset(images.SVHN), files=("svhn.npz",)),
    "synthdigits": Source(
        "Printed digits, re-made from free fonts, 32x32x3 (5,000 / 1,500).",
        images.SYNTHDIGITS.read,
        files=("synthdigits_remade.npz",),
    ),
    "synthetic": Source(
        "Generated by a logistic model per client: 30 clients, 60 columns, phi1 = phi2 = 1.", generated.synthetic
    ),
    "synthetic_0_0": Source(
        "FedProx's synthetic(0, 0): 30 clients with the sizes of its published file.",
        partial(generated.fedprox_synthetic, name="synthetic_0_0", alpha=0.0, beta=0.0),
    ),
    "synthetic_05_05": Source(
        "FedProx's synthetic(0.5, 0.5): 30 clients with the sizes of its published file.",
        partial(generated.fedprox_synthetic, name="synthetic_05_05", alpha=0.5, beta=0.5),
    ),
    "synthetic_1_1": Source(
        "FedProx's synthetic(1, 1): 30 clients with the sizes of its published file.",
        partial(generated.fedprox_synthetic, name="synthetic_1_1", alpha=1.0, beta=1.0),
    ),
    "table": Source(
        "Your own tables: data.root is a folder with a CSV, Parquet or Feather file per client, or one file.",
        tables.no_dataset,
        files=None,
    ),
    "tiny_imagenet": Source(
        "64x64x3 photographs of 25 of the 200 classes (5,000 / 1,250).",
        images.tiny_imagenet,
        files=("tiny_imagenet25.npz",),
    ),
    "uci_har": Source(
        "Movements of 30 people: windows of 9 signals, 6 activities (10,299).", tables.uci_har, files=("uci_har.npz",)
    ),
    "usps": Source("16x16 handwritten digits (7,291 / 2,007).", images.USPS.read, files=("usps.npz",)),
    "voc": Source(
        "Pascal VOC 2012 at 128x128x3, images of one class with a class per pixel: data.root is VOC2012.",
        voc.voc,
        files=None,
    ),
    "voc_macro": Source(
        "Pascal VOC 2012 with pixels of background, person, vehicles, household or animals.",
        partial(voc.voc, macro=True),
        files=None,
    ),
}
SOURCES = Registry("datasets", data_source, _KNOWN)
