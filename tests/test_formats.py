"""Published formats: each is read from files that the test makes in that format, and a damaged one is refused."""

from __future__ import annotations

import gc
import gzip
import json
import os
import pickle
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import protofed
from protofed.data.formats import PUBLISHED_FORMATS
from protofed.data.formats.published import ConvertOptions, write_converted
from protofed.data.formats.safe_pickle import read_plain_pickle
from protofed.data.hugging_face import channels_first
from protofed.data.npz_files import Stream, read_npz, write_npz
from protofed.data.sources import SOURCES
from protofed.errors import UserError
from protofed.experiment.config import Config
from test_cli import protofed as command  # noqa: F401

DRAW = np.random.RandomState(0)


def convert(name: str, source: Path, **options) -> dict[str, np.ndarray]:
    """What `protofed data convert` writes, read back."""
    out = source.parent / "out" / f"{name}.npz"
    write_converted(name, PUBLISHED_FORMATS[name], source, out, ConvertOptions(**options))
    return read_npz(out)


def refused(name: str, source: Path, message: str) -> None:
    """The error has this message, and no file is left."""
    out = source.parent / "refused" / f"{name}.npz"
    with pytest.raises(UserError, match=message):
        write_converted(name, PUBLISHED_FORMATS[name], source, out, ConvertOptions())
    assert not list((source.parent / "refused").glob("*")), "something was left behind"


# CIFAR


def string(text: bytes) -> bytes:
    """A Python 2 string as pickle protocol 2 writes it."""
    return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + struct.pack("<i", len(text)) + text


def integer(value: int) -> bytes:
    return b"K" + bytes([value]) if value < 256 else b"J" + struct.pack("<i", value)


def array(x: np.ndarray) -> bytes:
    """A uint8 array [n, m] as Python 2's numpy pickled it."""
    dtype = b"cnumpy\ndtype\n" + string(b"u1") + integer(0) + integer(1) + b"\x87R(" + integer(3) + string(b"|")
    dtype += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff" + integer(0) + b"tb"
    shape = integer(x.shape[0]) + integer(x.shape[1]) + b"\x86"
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + integer(0) + b"\x85" + string(b"b") + b"\x87R"
    return made + b"(" + integer(1) + shape + dtype + b"\x89" + string(x.tobytes()) + b"tb"


def batch(data: np.ndarray, **labels: list[int]) -> bytes:
    """A file of CIFAR's python version, byte by byte as Python 2 wrote it."""
    body = string(b"data") + array(data)
    for key, values in labels.items():
        body += string(key.encode()) + b"](" + b"".join(map(integer, values)) + b"e"
    return b"\x80\x02}q\x00(" + body + b"u."


def names(key: str, values: list[str]) -> bytes:
    listed = b"](" + b"".join(string(value.encode()) for value in values) + b"e"
    return b"\x80\x02}q\x00" + string(key.encode()) + listed + b"s."


CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
ROWS = DRAW.randint(0, 256, (6, 4, 3072)).astype(np.uint8)  # five batches and a test batch of four images
LABELS = DRAW.randint(0, 10, (6, 4)).tolist()
BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def cifar10_python(folder: Path) -> Path:
    folder.mkdir()
    (folder / "batches.meta").write_bytes(names("label_names", CIFAR10))
    for name, rows, labels in zip(BATCHES, ROWS, LABELS, strict=True):
        (folder / name).write_bytes(batch(rows, labels=labels))
    return folder


def cifar10_binary(folder: Path) -> Path:
    folder.mkdir()
    (folder / "batches.meta.txt").write_text("\n".join(CIFAR10) + "\n\n")
    for name, rows, labels in zip(BATCHES, ROWS, LABELS, strict=True):
        content = np.concatenate([np.array(labels, np.uint8)[:, None], rows], 1)
        (folder / f"{name}.bin").write_bytes(content.tobytes())
    return folder


@pytest.mark.parametrize("make", [cifar10_python, cifar10_binary])
def test_cifar10_in_both_versions(make, tmp_path):
    found = convert("cifar10", make(tmp_path / "cifar-10"))
    expected = np.moveaxis(ROWS.reshape(6, 4, 3, 32, 32), 2, 4)
    np.testing.assert_array_equal(found["x_train"], expected[:5].reshape(20, 32, 32, 3))
    np.testing.assert_array_equal(found["x_test"], expected[5])
    assert found["y_train"].tolist() == np.ravel(LABELS[:5]).tolist()
    data = SOURCES["cifar10"](str(tmp_path / "out"))
    assert data.labels == tuple(CIFAR10)
    assert (len(data.train), len(data.test), data.remark) == (20, 4, "subset")


def test_files_that_python_3_pickled_are_read_too(tmp_path):
    folder = cifar10_python(tmp_path / "cifar-10")
    for protocol, name in ((2, "data_batch_1"), (3, "data_batch_2"), (4, "data_batch_3")):
        number = int(name[-1]) - 1
        content = {b"data": ROWS[number], b"labels": LABELS[number], b"batch_label": b"training batch"}
        (folder / name).write_bytes(pickle.dumps(content, protocol))
    np.testing.assert_array_equal(
        convert("cifar10", folder)["x_train"], np.moveaxis(ROWS[:5].reshape(20, 3, 32, 32), 1, 3)
    )


def test_cifar100_in_both_versions(tmp_path):
    fine, coarse = [f"fine {n}" for n in range(6)], ["animals", "plants"]
    labels = {"coarse_labels": [0, 1, 1, 0], "fine_labels": [5, 2, 3, 1]}
    python, binary = tmp_path / "python", tmp_path / "binary"
    python.mkdir()
    binary.mkdir()
    meta = pickle.dumps({"fine_label_names": fine, "coarse_label_names": coarse}, 2)
    (python / "meta").write_bytes(meta)
    (binary / "fine_label_names.txt").write_text("\n".join(name.replace(" ", "_") for name in fine))
    (binary / "coarse_label_names.txt").write_text("\n".join(coarse))
    for part, rows in (("train", ROWS[0]), ("test", ROWS[1])):
        (python / part).write_bytes(batch(rows, **labels))
        content = np.concatenate([np.array(list(labels.values()), np.uint8).T, rows], 1)
        (binary / f"{part}.bin").write_bytes(content.tobytes())
    for number, folder in enumerate((python, binary)):
        out = tmp_path / str(number) / "cifar100.npz"
        write_converted("cifar100", PUBLISHED_FORMATS["cifar100"], folder, out, ConvertOptions())
        found = read_npz(out)
        assert found["y_train"].tolist() == [5, 2, 3, 1]
        assert found["fine_to_coarse"].tolist() == [0, 0, 1, 1, 0, 0]
        assert found["superclasses"].tolist() == coarse
        np.testing.assert_array_equal(found["x_test"], np.moveaxis(ROWS[1].reshape(4, 3, 32, 32), 1, 3))


class Malicious:
    def __reduce__(self):
        return (open, ("pwned", "w"))


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_malicious_pickle_is_refused_and_not_run(protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = cifar10_python(tmp_path / "cifar-10")
    content = {"data": ROWS[0], "labels": LABELS[0], "more": Malicious()}
    (folder / "data_batch_1").write_bytes(pickle.dumps(content, protocol))
    refused("cifar10", folder, r"data_batch_1 is refused: it holds .*It was not run")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"cos\nsystem\n(S'touch pwned'\ntR.", "the name os.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x05touch\x85R.", "the name os.system"),
        (b"(S'touch pwned'\nios\nsystem\n.", "the operation INST"),
        (b"cnumpy\nndarray\n(S'a'\ntR.", "a call of a function"),
        (b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R}b.", None),
        (b"\x80\x02}U\x01ac_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00utf-7\x86Rs.", "a call of a function"),
        (b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00\x82\x01.", "the operation EXT1"),
        (b"\x80\x02P0\n.", "the operation PERSID"),
        (b"\x80\x02]q\x00h\x00a.", "lists that contain themselves"),
        (b"(cnumpy\ndtype\nt.", "a name, number type or mark as a value"),
        (b"}cnumpy\ndtype\nK\x00s.", "a name, number type or mark as a value"),
        (b"(S'u1'\n((.", "a name, number type or mark as a value"),
        (b"cnumpy\ndtype\n(S'u1'\ntR.", "a name, number type or mark as a value"),
        (
            b"]q\x00" + b"".join(b"](h%ch%ceq%c" % (n, n, n + 1) for n in range(60)) + b".",
            "one another several times",
        ),
        (1000 * b"(" + 1000 * b"l" + b".", "nested too deeply"),
    ],
)
def test_anything_but_plain_data_is_refused(content, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as problem:
        read_plain_pickle(content, "f")
    assert (why or "is not a complete pickle") in str(problem.value)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.slow
def test_the_time_grows_with_the_number_of_marks_and_not_with_its_square():
    def seconds(count: int) -> float:
        gc.collect()  # otherwise the objects of other tests may be collected in the measured time
        gc.disable()
        try:
            began = time.process_time()
            assert read_plain_pickle(b"(" + count * b"(l" + b"l.", "f") == [[]] * count
            return time.process_time() - began
        finally:
            gc.enable()

    short, long = (min(seconds(count) for _ in range(3)) for count in (1_000, 16_000))
    assert long < 80 * short  # about 16 times; if each mark were looked for in all before, over 200 times


def test_plain_data_come_out_as_they_went_in():
    content = {"a": [1, -2, 300, 2**40, 1.5], "b": {"c": (True, None, "text", b"bytes")}, "x": ROWS[0]}
    for protocol in (2, 3, 4, 5):
        try:
            found = read_plain_pickle(pickle.dumps(content, protocol), "f")
        except UserError:
            assert protocol == 5  # numpy then writes arrays in another way, which CIFAR does not have
            continue
        np.testing.assert_array_equal(found.pop("x"), ROWS[0])
        assert found == {key: value for key, value in content.items() if key != "x"}


def test_damaged_cifar_files_are_refused(tmp_path):
    python, binary = cifar10_python(tmp_path / "python"), cifar10_binary(tmp_path / "binary")
    whole = (python / "test_batch").read_bytes()
    (python / "test_batch").write_bytes(whole[:-500])
    refused("cifar10", python, "test_batch is not a complete pickle: .* Get the file again")
    (python / "test_batch").write_bytes(batch(ROWS[0], labels=[0, 1, 2, 10]))
    refused("cifar10", python, "test_batch: its labels must be whole numbers from 0 to 9")
    (python / "test_batch").write_bytes(batch(ROWS[0], labels=[0, 1, 2]))
    refused("cifar10", python, r"its data have the shape \[4, 3072\] for 3 labels")
    (python / "test_batch").unlink()
    refused("cifar10", python, "There is no file test_batch in .*python. Give the folder that has it")
    content = (binary / "data_batch_2.bin").read_bytes()
    (binary / "data_batch_2.bin").write_bytes(content[:-1])
    refused(
        "cifar10", binary, "data_batch_2.bin is not complete: it has 12,291 bytes, which is not a multiple of 3,073"
    )


# SVHN and EMNIST


def test_svhn(tmp_path):
    from scipy.io import savemat

    folder = tmp_path / "svhn"
    folder.mkdir()
    images = DRAW.randint(0, 256, (32, 32, 3, 5)).astype(np.uint8)
    for part in ("train", "test"):
        savemat(folder / f"{part}_32x32.mat", {"X": images, "y": np.array([[10], [1], [9], [5], [10]], np.uint8)})
    found = convert("svhn", folder)
    assert found["y_train"].tolist() == [0, 1, 9, 5, 0]
    np.testing.assert_array_equal(found["x_test"][3], images[:, :, :, 3])
    assert len(SOURCES["svhn"](str(tmp_path / "out")).train) == 5
    content = (folder / "test_32x32.mat").read_bytes()
    (folder / "test_32x32.mat").write_bytes(content[:2000])
    refused("svhn", folder, "test_32x32.mat is not a complete MATLAB file")
    savemat(folder / "test_32x32.mat", {"X": images[:, :, :, :4], "y": np.ones((5, 1))})
    refused("svhn", folder, r"X has the shape \[32, 32, 3, 4\] and y 5 labels")


def idx(x: np.ndarray) -> bytes:
    return struct.pack(f">HBB{x.ndim}i", 0, 8, x.ndim, *x.shape) + x.astype(np.uint8).tobytes()


PICTURES = DRAW.randint(0, 256, (7, 28, 28)).astype(np.uint8)


def emnist_idx(folder: Path) -> Path:
    """The split `letters`: labels from 1, with upper and lower case letters in one class."""
    folder.mkdir()
    (folder / "emnist-letters-mapping.txt").write_text("1 65 97\n2 66 98\n3 67 99\n")
    for part in ("train", "test"):
        images = idx(PICTURES.transpose(0, 2, 1))  # published transposed
        (folder / f"emnist-letters-{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (folder / f"emnist-letters-{part}-labels-idx1-ubyte").write_bytes(idx(np.array([1, 2, 3, 3, 2, 1, 1])))
    return folder


def emnist_mat(path: Path) -> Path:
    from scipy.io import savemat

    part = {
        "images": PICTURES.transpose(0, 2, 1).reshape(7, 784),
        "labels": np.array([[1], [2], [3], [3], [2], [1], [1]], np.uint8),
        "writers": np.array([[7], [7], [9], [9], [9], [7], [7]], np.float64),
    }
    mapping = np.array([[1, 65, 97], [2, 66, 98], [3, 67, 99]], np.uint8)
    savemat(path, {"dataset": {"train": part, "test": part, "mapping": mapping}})
    return path


def test_emnist_from_idx_and_from_matlab(tmp_path):
    found = convert("emnist", emnist_idx(tmp_path / "idx"))
    np.testing.assert_array_equal(found["x"][:, 0], PICTURES)
    assert found["y_test"].tolist() == [0, 1, 2, 2, 1, 0, 0]
    assert (found["classes"].tolist(), str(found["name"])) == (["A", "B", "C"], "emnist letters")
    (tmp_path / "out" / "emnist.npz").rename(tmp_path / "out" / "idx.npz")
    again = convert("emnist", emnist_mat(tmp_path / "emnist-letters.mat"))
    np.testing.assert_array_equal(again["x"], found["x"])
    assert again["client"].tolist() == [7, 7, 9, 9, 9, 7, 7]
    data = SOURCES["npz"](str(tmp_path / "out" / "emnist.npz"))
    assert (data.name, data.groups, data.labels) == ("emnist letters", ("7", "9"), ("A", "B", "C"))


def test_damaged_emnist_files_are_refused(tmp_path):
    folder = emnist_idx(tmp_path / "idx")
    path = folder / "emnist-letters-train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-200])
    refused("emnist", folder, "images-idx3-ubyte.gz is not a complete IDX file")
    path.unlink()
    refused("emnist", folder, "must have the files of exactly one split of EMNIST .* it has none")
    matlab = emnist_mat(tmp_path / "e.mat")
    matlab.write_bytes(matlab.read_bytes()[:3000])
    refused("emnist", matlab, "e.mat is not a complete MATLAB file")


def test_mnist_from_idx(tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(PICTURES))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(7)))
    found = convert("mnist", folder)
    np.testing.assert_array_equal(found["x_train"], PICTURES)
    assert SOURCES["mnist"](str(tmp_path / "out")).labels == tuple("0123456789")
    for labels, words in ((np.arange(6), "it has 7 images but 6 labels"), (np.arange(7) + 5, "from 0 to 9")):
        (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(labels))
        refused("mnist", folder, words)


# LEAF and FedProx


def leaf_folder(folder: Path, make: Callable[[str], dict[str, list]]) -> Path:
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        for number, user in enumerate(("f0000_14", "f0001_41")):
            content = {"users": [user], "num_samples": [4], "user_data": {user: make(user)}}
            (folder / part / f"all_data_{number}_niid_0_keep_0_{part}_9.json").write_text(json.dumps(content))
    return folder


def test_femnist_of_leaf(tmp_path):
    pixels = PICTURES[:4].reshape(4, 784)
    folder = leaf_folder(tmp_path / "femnist", lambda _: {"x": (pixels / 255).tolist(), "y": [0, 10, 36, 61]})
    found = convert("femnist", folder)
    np.testing.assert_array_equal(found["x"][4:, 0], PICTURES[:4])
    assert [str(found["classes"][label]) for label in found["y"][:4]] == ["0", "A", "a", "z"]
    data = SOURCES["npz"](str(tmp_path / "out" / "femnist.npz"))
    assert (data.name, data.classes, data.groups) == ("femnist", 62, ("f0000_14", "f0001_41"))
    assert data.test_group.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    broken = folder / "train" / "all_data_0_niid_0_keep_0_train_9.json"
    broken.write_text(broken.read_text()[:-40])
    refused("femnist", folder, "keep_0_train_9.json cannot be read as a file of LEAF")
    leaf_folder(tmp_path / "short", lambda _: {"x": [[0.5] * 3], "y": [0]})
    refused("femnist", tmp_path / "short", r"an input of user f0000_14 has \(3,\) numbers; FEMNIST has 784")


def test_fedprox_mnist_and_synthetic(tmp_path):
    """FedProx's labels are written as 3.0, and its MNIST is standardised, so that values are negative."""
    folder = leaf_folder(tmp_path / "fedprox", lambda _: {"x": [[-0.4, 2.0]] * 3, "y": [3.0, 0.0, 1.0]})
    found = convert("leaf", folder)
    assert found["y"].tolist() == [3, 0, 1, 3, 0, 1]
    assert found["x"].dtype == np.float32
    assert found["client_test"].tolist() == ["f0000_14"] * 3 + ["f0001_41"] * 3
    data = SOURCES["leaf"](str(folder))
    np.testing.assert_array_equal(data.train.x.numpy(), found["x"])
    path = next((folder / "test").iterdir())
    path.write_text("{}")
    refused("leaf", folder, "cannot be read as a file of LEAF: KeyError")


# CelebA and folders of images


def picture(path: Path, value: int, side: int = 8) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side, 3), value, np.uint8)).save(path)


def celeba_lists(folder: Path) -> Path:
    images = [f"{number:06d}.png" for number in range(1, 13)]
    for number, name in enumerate(images):
        picture(folder / "img_align_celeba" / name, 10 * number)
    users = [2880] * 5 + [17] * 5 + [9] * 2  # the last celebrity has too few images
    (folder / "identity_CelebA.txt").write_text("".join(f"{i} {u}\n" for i, u in zip(images, users, strict=True)))
    rows = "".join(f"{name} {1 if n % 2 else -1} -1\n" for n, name in enumerate(images))
    (folder / "list_attr_celeba.txt").write_text(f"12\nSmiling Young\n{rows}")
    return folder


def test_celeba_from_the_original_lists(tmp_path):
    found = convert("celeba", celeba_lists(tmp_path / "celeba"), side=4)
    assert found["x"].shape == (10, 3, 4, 4)
    assert found["client"].tolist() == ["17"] * 5 + ["2880"] * 5
    assert found["x"][:, 0, 0, 0].tolist() == [50, 60, 70, 80, 90, 0, 10, 20, 30, 40]
    assert found["y"].tolist() == [1, 0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert found["classes"].tolist() == ["not Smiling", "Smiling"]
    assert SOURCES["npz"](str(tmp_path / "out" / "celeba.npz")).groups == ("17", "2880")


def test_the_recipe_for_celeba_runs_on_converted_files(tmp_path):
    convert("celeba", celeba_lists(tmp_path / "celeba"), side=84)
    few = ["run.rounds=1", "run.eval_last=1", "run.sample=2", "train.epochs=1"]
    recipe = Path(__file__).parents[1] / "recipes" / "protomargin-celeba.toml"
    result = protofed.run(Config.load(recipe, [f"data.root={tmp_path / 'out' / 'celeba.npz'}", *few]))
    assert result.summary["clients"] == len(result.clients) == 2


def test_celeba_from_leaf(tmp_path):
    folder = tmp_path / "celeba"
    leaf_folder(folder / "data", lambda user: {"x": [f"{user}.png", "b.png"], "y": [1.0, 0.0]})
    for number, name in enumerate(("f0000_14", "f0001_41", "b")):
        picture(folder / "data" / "raw" / "img_align_celeba" / f"{name}.png", number)
    found = convert("celeba", folder, side=4)
    assert found["x_test"][:, 0, 0, 0].tolist() == [0, 2, 1, 2]
    assert found["client"].tolist() == ["f0000_14", "f0000_14", "f0001_41", "f0001_41"]


def test_damaged_celeba_files_are_refused(tmp_path):
    folder = celeba_lists(tmp_path / "celeba")
    with pytest.raises(UserError, match=r'has no attribute Smilng. Did you mean "Smiling"\? Known: Smiling, Young.'):
        convert("celeba", folder, target="Smilng")
    (folder / "img_align_celeba" / "000003.png").write_bytes(b"\x89PNG junk")
    refused("celeba", folder, r"000003.png cannot be read as an image: .* Get the file again")
    lines = (folder / "list_attr_celeba.txt").read_text().splitlines()
    (folder / "list_attr_celeba.txt").write_text("\n".join([*lines[:5], "000004.png 1"]))
    refused("celeba", folder, "list_attr_celeba.txt, line 6: it must have an image and 2 values 1 or -1")


def test_mnist_m(tmp_path):
    folder = tmp_path / "mnist_m"
    for part in ("train", "test"):
        for number in range(3):
            picture(folder / f"mnist_m_{part}" / f"{number:08d}.png", number, 32)
        (folder / f"mnist_m_{part}_labels.txt").write_text("00000000.png 5\n00000001.png 0\n00000002.png 4\n")
    found = convert("mnist_m", folder)
    assert found["x_train"].shape == (3, 32, 32, 3)
    assert found["y_test"].tolist() == [5, 0, 4]
    assert len(SOURCES["mnist_m"](str(tmp_path / "out")).test) == 3
    (folder / "mnist_m_test" / "00000001.png").unlink()
    refused("mnist_m", folder, "00000001.png cannot be read as an image")
    (folder / "mnist_m_train_labels.txt").write_text("00000000.png\n")
    refused("mnist_m", folder, "mnist_m_train_labels.txt, line 1: it must have a file name and a label")


def test_folders_of_images(tmp_path):
    for number, name in enumerate(("dog/a.png", "cat/b.jpg", "cat/c.png")):
        picture(tmp_path / "flat" / name, number * 100)
        picture(tmp_path / "deep" / "photo" / name, number * 100)
        picture(tmp_path / "deep" / "art" / "images" / name, number * 100)
    found = convert("images", tmp_path / "flat")
    assert (found["classes"].tolist(), found["y"].tolist()) == (["cat", "dog"], [0, 0, 1])
    assert found["x"].shape == (3, 3, 64, 64)
    assert "client" not in found
    (tmp_path / "out" / "images.npz").unlink()
    found = convert("images", tmp_path / "deep", side=16)
    assert found["client"].tolist() == ["art"] * 3 + ["photo"] * 3
    assert SOURCES["npz"](str(tmp_path / "out" / "images.npz")).name == "deep"
    picture(tmp_path / "deep" / "photo" / "loose.png", 3)
    refused("images", tmp_path / "deep", r"mixes class/image \(.*loose.png\) and domain/class/image")
    (tmp_path / "empty").mkdir()
    refused("images", tmp_path / "empty", "has no images in folders")


def test_office_caltech10(tmp_path):
    classes = [f"class {number}" for number in range(10)]
    for domain in ("amazon", "caltech10", "dslr", "webcam"):
        for label in [*classes, *(["only here"] if domain == "amazon" else [])]:
            for copy in range(6):
                picture(tmp_path / "office" / domain / label / f"{copy}.jpg", copy)
    found = convert("office_caltech10", tmp_path / "office")
    assert found["classes"].tolist() == classes
    data = SOURCES["office_caltech10"](str(tmp_path / "out"))
    assert data.groups == ("amazon", "caltech10", "dslr", "webcam")
    assert len(data.train) + len(data.test) == 240
    (tmp_path / "office" / "dslr" / "class 0" / "2.jpg").write_bytes(b"junk")
    refused("office_caltech10", tmp_path / "office", "2.jpg cannot be read as an image")


def test_domainnet(tmp_path):
    folder = tmp_path / "domainnet"
    for domain in ("clipart", "real"):
        for part, label in (("train", "axe"), ("test", "zebra")):
            picture(folder / domain / label / f"{domain}_{part}.jpg", 7)
            line = f"{domain}/{label}/{domain}_{part}.jpg {0 if label == 'axe' else 1}\n"
            (folder / f"{domain}_{part}.txt").write_text(line)
    found = convert("domainnet", folder)
    assert (found["client"].tolist(), found["y"].tolist(), found["y_test"].tolist()) == (
        ["clipart", "real"],
        [0, 0],
        [1, 1],
    )
    (folder / "real_train.txt").write_text("axe.jpg 0\n")
    refused("domainnet", folder, "real_train.txt, line 1: it must be DOMAIN/CLASS/IMAGE and a label")


def test_voc(tmp_path):
    from PIL import Image

    root = tmp_path / "VOC2012"
    for name in ("one", "two"):
        picture(root / "JPEGImages" / f"{name}.jpg", 30, 20)
        mask = Image.fromarray(np.pad(np.full((10, 10), 3, np.uint8), 5), "L")
        (root / "SegmentationClass").mkdir(exist_ok=True)
        mask.save(root / "SegmentationClass" / f"{name}.png")
    (root / "ImageSets" / "Segmentation").mkdir(parents=True)
    (root / "ImageSets" / "Segmentation" / "train.txt").write_text("one\n")
    (root / "ImageSets" / "Segmentation" / "val.txt").write_text("two\n")
    found = convert("voc", root)
    assert found["mask"].shape == (1, 128, 128)
    data = SOURCES["npz"](str(tmp_path / "out" / "voc.npz"))
    assert (data.name, data.labels[3], data.train.mask is not None) == ("voc", "bird", True)
    (root / "JPEGImages" / "two.jpg").write_bytes(b"junk")
    refused("voc", root, "the image two of val.txt cannot be read")


OUTSIDE = r' names the file ".*secret.*", which is not within .*Get the list from where it is published'


@pytest.mark.parametrize("absolute", [True, False])
def test_lists_cannot_name_images_outside_their_folder(absolute, tmp_path):
    secret = tmp_path / "secret" / "secret.png"
    picture(secret, 1, 32)

    def name(folder: Path) -> str:
        return str(secret) if absolute else os.path.relpath(secret, folder)

    folder = celeba_lists(tmp_path / "celeba")
    for file in ("identity_CelebA.txt", "list_attr_celeba.txt"):
        text = (folder / file).read_text()
        (folder / file).write_text(text.replace("000003.png", name(folder / "img_align_celeba")))
    refused("celeba", folder, OUTSIDE)
    folder = tmp_path / "mnist_m"
    for part in ("train", "test"):
        (folder / f"mnist_m_{part}").mkdir(parents=True)
        (folder / f"mnist_m_{part}_labels.txt").write_text(f"{name(folder / f'mnist_m_{part}')} 5\n")
    refused("mnist_m", folder, OUTSIDE)
    folder = tmp_path / "domainnet"
    folder.mkdir()
    (folder / "real_train.txt").write_text("/secret/x.png 0\n" if absolute else f"{name(folder)} 0\n")
    refused("domainnet", folder, f"real_train.txt, line 1{OUTSIDE}")
    folder = tmp_path / "VOC2012"
    for inner in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (folder / inner).mkdir(parents=True)
    (folder / "ImageSets" / "Segmentation" / "train.txt").write_text(name(folder / "JPEGImages"))
    refused("voc", folder, f"train.txt{OUTSIDE}")


# The command, checksums and streams


def test_the_command_converts_once_and_says_how_to_use_it(command, tmp_path):  # noqa: F811
    cifar10_python(tmp_path / "cifar-10-batches-py")
    assert command("data", "convert", "cifar10", "cifar-10-batches-py") == (
        0,
        "cifar10: 20 / 4 training / test examples of 10 classes. Written to cifar10.npz.\n"
        "Use it: protofed run --set data.name=cifar10 --set data.root=.\n",
        "",
    )
    assert command("data", "convert", "cifar10", "cifar-10-batches-py")[2] == (
        "protofed: cifar10.npz already exists. Give another name.\n"
    )
    code, out, _ = command("data", "info", "cifar10", "--root", ".")
    assert code == 0
    assert out.startswith(
        "cifar10: 32x32x3 photographs of 10 classes.\npublished: www.cs.toronto.edu/~kriz/cifar.html\n"
    )
    assert "cifar10 (subset): 20 training and 4 test examples of 10 classes" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cifra10", "."], 'There is no format "cifra10". Did you mean "cifar10"? Known: celeba, cifar10, '),
        (["cifar10", "none"], "There is no none. FROM must be a folder cifar-10-batches-py "),
        (
            ["cifar10", ".", "--out", "c.npz"],
            "--out: got c.npz, but data.name=cifar10 reads a file with the name cifar10.npz.",
        ),
        (["images", ".", "--out", "c.zip"], "--out: got c.zip; its name must end in .npz."),
    ],
)
def test_what_cannot_be_converted_is_said(words, message, command, tmp_path):  # noqa: F811
    code, _, err = command("data", "convert", *words)
    assert code == 2
    assert err.startswith(f"protofed: {message}")
    assert not list(tmp_path.glob("*"))


def test_every_format_says_where_it_is_published_and_how_large_it_is(command):  # noqa: F811
    for name, published in PUBLISHED_FORMATS.items():
        assert all(published.as_json().values()), name
    code, out, _ = command("data", "info", "celeba")
    assert code == 0
    assert "size: 202,599 images, 1.4 GB (img_align_celeba.zip)\nlicence: non-commercial research only\n" in out


def test_the_checksum_is_verified_when_a_dataset_is_read(tmp_path):
    convert("cifar10", cifar10_python(tmp_path / "cifar-10"))
    path = tmp_path / "out" / "cifar10.npz"
    with np.load(path) as stored:
        arrays = {key: stored[key] for key in stored.files}
    arrays["y_test"] = arrays["y_test"][::-1]
    np.savez(path, **arrays)
    with pytest.raises(UserError, match=r"cifar10.npz is damaged: y_test does not have its checksum. Convert the data"):
        SOURCES["cifar10"](str(tmp_path / "out"))


def test_a_stream_is_the_array_and_must_be_complete(tmp_path):
    x = DRAW.randint(0, 256, (5, 2, 3)).astype(np.uint8)
    write_npz(tmp_path / "s.npz", {"x": Stream(x.shape, np.uint8, iter([x[:3], x[3:]])), "name": np.array("s")})
    np.testing.assert_array_equal(read_npz(tmp_path / "s.npz")["x"], x)
    with pytest.raises(ValueError, match="x has 3 rows instead of 5"):
        write_npz(tmp_path / "t.npz", {"x": Stream(x.shape, np.uint8, iter([x[:3]]))})


def test_labels_of_leaf_are_not_given_the_name_of_another_attribute(tmp_path):
    folder = tmp_path / "celeba"
    leaf_folder(folder / "data", lambda user: {"x": [f"{user}.png"], "y": [1.0]})
    with pytest.raises(UserError, match=r"--target: got Male, but LEAF's files have the labels of Smiling alone."):
        convert("celeba", folder, target="Male")


def test_a_size_is_refused_where_the_format_has_one(tmp_path):
    with pytest.raises(UserError, match=r"--size: got 16, but svhn has inputs of one size only. Leave it out."):
        convert("svhn", tmp_path / "svhn", side=16)


@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32])
def test_images_whose_large_values_would_be_cut_are_refused(kind, tmp_path):
    from PIL import Image

    (tmp_path / "scans" / "a").mkdir(parents=True)
    pixels = np.linspace(0, 4095, 64).reshape(8, 8).astype(kind)
    Image.fromarray(pixels).save(tmp_path / "scans" / "a" / "x.tif")
    refused("images", tmp_path / "scans", r"x.tif has pixels of more than 8 bits \(Pillow's mode [IF].*save 8 bits")
    with pytest.raises(UserError, match="An image has pixels of more than 8 bits"):
        channels_first(Image.fromarray(pixels))
