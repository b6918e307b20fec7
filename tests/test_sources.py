from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
import torch

from protofed.data.sources import SOURCES
from protofed.errors import UserError
from protofed.examples import Examples

IDX = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}i", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def fake(root, pack=lambda content: content, suffix="") -> None:
    rng = np.random.RandomState(0)
    for name, count in zip(IDX, (20, 20, 10, 10), strict=True):
        array = rng.randint(0, 256, (count, 28, 28)) if "images" in name else np.arange(count) % 10
        (root / f"{name}{suffix}").write_bytes(pack(idx(array)))


def test_digits_are_split_evenly_and_normalised():
    data = SOURCES["digits"]("")
    assert (len(data.train), len(data.test)) == (1442, 355)
    assert data.train.labels.bincount().tolist() == [143, 146, 142, 147, 145, 146, 145, 144, 140, 144]
    x, _ = data.train.take(torch.arange(len(data.train)))
    assert x.shape == (1442, 1, 8, 8)
    assert abs(x.mean()) < 1e-3
    assert abs(x.std() - 1) < 1e-3


@pytest.mark.parametrize(("pack", "suffix"), [(bytes, ""), (gzip.compress, ".gz")])
def test_mnist_from_the_published_files(tmp_path, pack, suffix):
    fake(tmp_path, pack, suffix)
    data = SOURCES["mnist"](str(tmp_path))
    assert (len(data.train), len(data.test)) == (20, 10)
    assert data.test.labels.tolist() == list(range(10))
    assert data.train.shape == (1, 28, 28)


@pytest.mark.parametrize(("folder", "suffix"), [("", ""), ("", ".gz"), ("mnist", ".gz")])
def test_the_list_knows_both_forms_of_mnist(tmp_path, folder, suffix):
    root, place = str(tmp_path), tmp_path / folder
    assert SOURCES["mnist"].state(root) == f"not here: no mnist.npz in {root}"
    place.mkdir(exist_ok=True)
    fake(place, gzip.compress if suffix else bytes, suffix)
    assert SOURCES["mnist"].state(root) == "ready"
    assert len(SOURCES["mnist"](root).train) == 20
    others = "usps.npz, svhn.npz, mnist_m.npz, synthdigits_remade.npz"
    assert SOURCES["digit5"].state(root) == f"not here: no {others} in {root}"
    (place / f"{IDX[2]}{suffix}").unlink()
    assert SOURCES["mnist"].state(root) == f"not here: no mnist.npz in {root}"
    assert SOURCES["digit5"].state(root) == f"not here: no mnist.npz, {others} in {root}"
    (tmp_path / "mnist.npz").touch()
    assert SOURCES["mnist"].state(root) == "ready"


def test_mnist_that_is_not_there_says_what_it_wants(tmp_path):
    with pytest.raises(
        UserError, match=r"neither mnist.npz nor train-images-idx3-ubyte\(.gz\) in .*set data.root or \$PROTOFED_DATA"
    ):
        SOURCES["mnist"](str(tmp_path))


def test_truncated_files_are_called_so(tmp_path):
    fake(tmp_path)
    whole = (tmp_path / IDX[0]).read_bytes()
    (tmp_path / IDX[0]).write_bytes(whole[:500])
    with pytest.raises(UserError, match="is not a complete IDX file"):
        SOURCES["mnist"](str(tmp_path))
    (tmp_path / "mnist.npz").write_bytes(b"PK not really")
    with pytest.raises(UserError, match=r"mnist.npz is damaged: its end is missing"):
        SOURCES["mnist"](str(tmp_path))


def test_arrays_of_the_wrong_shape_are_called_so(tmp_path):
    np.savez(
        tmp_path / "mnist.npz",
        x_train=np.zeros((4, 9, 9)),
        y_train=np.zeros(4),
        x_test=np.zeros((4, 28, 28)),
        y_test=np.zeros(4),
    )
    with pytest.raises(UserError, match=r"the train part .* has inputs \[4, 9, 9\]"):
        SOURCES["mnist"](str(tmp_path))


def test_labels_that_are_none_are_called_so(tmp_path):
    images = np.zeros((4, 28, 28), np.uint8)
    for labels in (np.array(["a"] * 4), np.array([0, 1, 2, 10])):
        np.savez(tmp_path / "mnist.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
        with pytest.raises(UserError, match=r"the train part in .*: its labels must be whole numbers from 0 to 9"):
            SOURCES["mnist"](str(tmp_path))


def test_broken_gzip_is_called_so(tmp_path):
    fake(tmp_path, gzip.compress, ".gz")
    content = bytearray((tmp_path / f"{IDX[0]}.gz").read_bytes())
    content[50:90] = bytes(40)
    (tmp_path / f"{IDX[0]}.gz").write_bytes(content)
    with pytest.raises(UserError, match="is not a complete IDX file"):
        SOURCES["mnist"](str(tmp_path))


def test_root_comes_before_the_environment(tmp_path, monkeypatch):
    fake(tmp_path)
    monkeypatch.setenv("PROTOFED_DATA", str(tmp_path / "nowhere"))
    assert len(SOURCES["mnist"](str(tmp_path)).train) == 20
    monkeypatch.setenv("PROTOFED_DATA", str(tmp_path))
    assert len(SOURCES["mnist"]("").train) == 20


def test_subsets_share_the_inputs():
    whole = Examples.of(np.arange(12, dtype=np.uint8).reshape(6, 2), np.arange(6), scale=2.0, mean=1.0, std=0.5)
    part = whole.subset(np.array([4, 1])).subset(np.array([1, 0]))
    x, y = part.take(torch.tensor([0, 1]))
    assert y.tolist() == [1, 4]
    assert x.tolist() == [[0, 1], [6, 7]]  # (2 / 2 - 1) / 0.5 = 0, ...
    assert part.x is whole.x


def test_real_mnist_has_its_known_counts(mnist_root):
    data = SOURCES["mnist"](mnist_root)
    assert data.train.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert int(data.train.x[0].long().sum()) == 27525  # the first image, a 5
