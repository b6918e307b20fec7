"""An encoder trained centrally, and data that it turns into features."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from protofed.core import Client
from protofed.data.dataset import Dataset, Source
from protofed.data.images import IMAGENET_MEAN, IMAGENET_STD, in_colour
from protofed.data.sources import SOURCES
from protofed.engines.threads import cores, one_thread, threads
from protofed.errors import UserError
from protofed.examples import Examples, channels_last
from protofed.experiment.config import Config
from protofed.experiment.encoder import encode_dataset
from protofed.experiment.members import Members
from protofed.experiment.sections import DataSection
from protofed.models import pretrain
from protofed.nets import NETS, make_net, weights
from test_cli import protofed as command  # noqa: F401

SMALL = ("--size", "16", "--set", "net.width=4", "--epochs", "4", "--batch", "8", "--threads", "1")


def halves(where: Path = Path()) -> Dataset:
    """Grey bytes 20x20: the upper half is bright, or the lower one."""
    y = np.arange(50) % 2
    x = np.random.RandomState(0).randint(0, 60, (50, 1, 20, 20)).astype(np.uint8)
    x[y == 0, :, :10] += 180
    x[y == 1, :, 10:] += 180
    parts = [Examples.of(x[part], y[part], 255.0, 0.1, 0.2) for part in (slice(40), slice(40, None))]
    return Dataset("halves", *parts, labels=("up", "down"), remark="toy")


def tints(where: Path = Path()) -> Dataset:
    """Colours 16x16, numbers from 0 to 1: red, green or blue."""
    y = np.arange(48) % 3
    x = np.random.RandomState(1).uniform(0, 0.5, (48, 3, 16, 16)).astype(np.float32)
    x[np.arange(48), y] += 0.5
    train, test = (Examples.of(x[part], y[part]) for part in (slice(36), slice(36, None)))
    return Dataset("tints", train, test, labels=(0, 1, 2))


@pytest.fixture(autouse=True)
def _toys(monkeypatch, tmp_path):
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(SOURCES, "halves", Source("toy", halves))
    monkeypatch.setitem(SOURCES, "tints", Source("toy", tints))


def test_images_are_brought_to_one_size_in_colour():
    row = torch.tensor([0, 0, 255, 255], dtype=torch.uint8)
    small = in_colour(row.expand(1, 1, 4, 4), 2)
    # A pixel half the size takes its own two with 3/4 each, and with 1/4 the one beside them: 255 / 7 and 255 * 6 / 7.
    assert small.shape == (1, 3, 2, 2)
    assert small[0, 0].tolist() == small[0, 2].tolist() == [[36, 219], [36, 219]]
    data = pretrain.as_colour_images(tints(), 16)
    assert data.train.x[0, 1, 2, 3] == round(255 * tints().train.x[0, 1, 2, 3].item())
    assert data.train.input == {
        "shape": [3, 16, 16],
        "scale": 255.0,
        "mean": [*IMAGENET_MEAN],
        "std": [*IMAGENET_STD],
        "fill": None,
    }
    sixteen = Examples.of(np.full((5, 1, 8, 8), 4, np.uint8), np.zeros(5, int), 16.0)
    assert pretrain.as_colour_images(Dataset("few", sixteen, sixteen, (0,)), 8).test.x.unique().tolist() == [
        64
    ]  # 4/16 of 255


def test_classes_are_put_side_by_side():
    datasets = [pretrain.as_colour_images(data, 16) for data in (halves(), tints())]
    assert pretrain.first_classes(datasets) == [0, 2]
    both = pretrain.combine_training_sets(datasets)
    assert both.labels.tolist() == [0, 1] * 20 + [2, 3, 4] * 12
    assert torch.equal(both.x[40:], datasets[1].train.x)


def test_a_subset_of_an_array_is_all_that_is_taken():
    data = tints()
    few = Dataset("few", data.train.subset(np.array([4, 2, 0])), data.test, data.labels)
    made = pretrain.as_colour_images(few, 16)
    assert made.train.labels.tolist() == [1, 2, 0]
    assert torch.equal(made.train.x[1], pretrain.as_colour_images(data, 16).train.x[2])


def test_accuracy_is_among_a_datasets_own_classes():
    def always(params: dict, x: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, torch.tensor([0.0, 1.0, 9.0, 3.0, 2.0]).expand(len(x), -1)

    exam = Examples.of(np.zeros((3, 1), np.float32), np.array([0, 0, 1]))
    assert pretrain.accuracy_among_own_classes(always, {}, Dataset("b", exam, exam, (0, 1, 2)), 2) == pytest.approx(
        2 / 3
    )
    assert pretrain.accuracy_among_own_classes(always, {}, Dataset("a", exam, exam, (0, 1)), 0) == pytest.approx(1 / 3)


def test_training_is_sgd_with_a_cosine_from_epoch_to_epoch():
    words = ["net.hidden=[5]", "train.epochs=3", "train.batch=99", "train.lr=0.4", "train.momentum=0.9"]
    config = Config.load(None, [*words, "train.weight_decay=0.01"])
    examples = pretrain.as_colour_images(tints(), 4).train
    net = make_net("mlp", config.nets[0].design, examples.shape, 3)
    told = []
    ours = pretrain.train_epochs(config, net, examples, told.append)
    leaves = {name: value.requires_grad_() for name, value in Client(net, 0, 0, 0, 1, examples).fresh_params().items()}
    x, y = examples.take(torch.arange(len(examples)))
    for share in (1.0, 0.75, 0.25):  # a batch an epoch: momentum, which starts anew, has nothing to add
        peer = torch.optim.SGD(leaves.values(), 0.4 * share, momentum=0.9, weight_decay=0.01)
        peer.zero_grad()
        F.cross_entropy(net(leaves, x)[1], y).backward()
        peer.step()
    for name, value in leaves.items():
        torch.testing.assert_close(ours[name], value.detach())
    assert [line.partition("  lr ")[2].split()[0] for line in told] == ["0.4", "0.3", "0.1"]


@pytest.mark.slow
def test_pretrain_learns_says_so_and_writes_where_it_comes_from(command, tmp_path):  # noqa: F811
    words = ("pretrain", "--data", "halves", "--data", "tints", *SMALL)
    code, out, err = command(
        *words, "--set", "net.width=8", "--epochs", "8", "--lr", "0.05", "--out", "new/e.safetensors"
    )
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0] == (
        "resnet18(norm=group, width=8) on halves (toy), tints: 76 training images at 16x16x3, 5 classes, 8 epochs, 1 thread"
    )
    assert lines[1].startswith("epoch 1/8  loss ")
    assert "  lr 0.05  time " in lines[1]
    assert lines[8].startswith("epoch 8/8  loss ")
    assert lines[9].startswith("Test accuracy, among each dataset's own classes: halves ")
    assert "(majority-class baseline 50.0 %), tints " in lines[9]
    assert lines[10].startswith("Written to new/e.safetensors, 0.7 MB.")
    assert lines[11] == 'data.encoder = "new/e.safetensors"'
    layers, about = weights.read_weights_and_metadata(tmp_path / "new" / "e.safetensors")
    assert layers["head.out.bias"].shape == (5,)
    assert weights.net_options(about, "")["norm"] == "group"
    assert json.loads(about["labels"]) == ["halves up", "halves down", "tints 0", "tints 1", "tints 2"]
    told = json.loads(about["pretraining"])
    assert {key: told[key] for key in ("data", "titles")} == {
        "data": ["halves", "tints"],
        "titles": ["halves (toy)", "tints"],
    }
    assert [told[key] for key in ("images", "size", "seed", "threads")] == [76, 16, 0, 1]
    assert told["train"]["epochs"] == 8
    assert told["train"]["augment"] == ["crop", "flip"]
    assert told["majority"] == pytest.approx({"halves": 1 / 2, "tints": 1 / 3})
    assert told["accuracy"]["tints"] > 0.6
    net = make_net("resnet18", NETS["resnet18"](norm="group", width=8), (3, 16, 16), 5)
    exam = pretrain.as_colour_images(tints(), 16)
    assert told["accuracy"]["tints"] == pytest.approx(pretrain.accuracy_among_own_classes(net, layers, exam, 2))


def test_the_same_seed_gives_the_same_bytes(command, tmp_path):  # noqa: F811
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        assert command("pretrain", "--data", "tints", *SMALL, "--seed", seed, "--out", f"{name}.safetensors")[0] == 0
    a, b, c = ((tmp_path / f"{name}.safetensors").read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_another_net_and_layers_to_start_from(command, tmp_path):  # noqa: F811
    words = ("pretrain", "--data", "tints", "--net", "mlp", "--size", "4", "--set", "net.dim=6", "--threads", "1")
    assert command(*words, "--epochs", "1", "--out", "a.safetensors")[1].startswith("mlp(dim=6) on tints: ")
    more = ("--set", "net.weights=a.safetensors", "--set", "train.epochs=0")
    code, out, _ = command(*words, *more, "--out", "b.safetensors")
    assert code == 0
    assert "net mlp(dim=6): 6 of 6 tensors from a.safetensors" in out
    a, b = (weights.read_weights(tmp_path / f"{name}.safetensors") for name in "ab")
    assert all(torch.equal(value, b[name]) for name, value in a.items())


def test_a_dataset_no_better_than_the_majority_class_is_named():
    made = pretrain.Pretrained(None, {"a": 0.625, "b": 0.25}, {"a": 0.5, "b": 0.25}, "{}")
    assert made.text() == (
        "Test accuracy, among each dataset's own classes: a 62.5 % (majority-class baseline 50.0 %), b 25.0 % "
        "(majority-class baseline 25.0 %). Not better than the baseline: b. Check the loss, --lr and --epochs."
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "tnits"], 'There is no dataset "tnits". Did you mean "tints"? Known: cifar10, '),
        (
            ["--data", "spiral"],
            "--data spiral: inputs of shape (2,) are not images [1 or 3 channels, height, width]. Give a dataset of images.\n",
        ),
        (["--data", "tints", "--data", "tints"], "--data tints: given 2 times. Give it once.\n"),
        (
            ["--data", "npz", "--root", "few.npz"],
            "--data npz has no test examples. Give at least five examples of a class.\n",
        ),
        (
            ["--data", "npz", "--root", "wide.npz"],
            "--data npz: the values range from -1 to 300. Give bytes, or numbers from 0 to 1.\n",
        ),
        (["--data", "tints", "--out", "old.safetensors"], "old.safetensors already exists. Give another name.\n"),
        (["--data", "tints", "--out", "new.onnx"], "--out: got new.onnx; its name must end in .safetensors.\n"),
        (["--data", "tints", "--out", "few.npz/new.safetensors"], "--out: cannot write to "),
        (
            ["--data", "tints", "--size", "8"],
            "net resnet18 needs images of at least 16x16 with channels first, got inputs of shape (3, 8, 8). Use net mlp or larger images (if it is an encoder: data.encoder_size).\n",
        ),
        (
            ["--data", "tints", "--net", "resnet"],
            'The experiment has a problem:\n  - net.name: there is no "resnet". Did you mean "resnet18"? Known: cnn, ',
        ),
        (["--data", "tints", "--lr", "0"], "The experiment has a problem:\n  - train.lr: got 0.0; must be above 0\n"),
        (
            ["--data", "tints", "--set", "net.stem=cfar"],
            'The experiment has a problem:\n  - net.stem: got "cfar". Did you mean "cifar"? Known: cifar, imagenet.\n',
        ),
        (["--data", "tints", "--set", "net.name=mlp"], "--set net.name=mlp: choose the net with --net.\n"),
        (
            ["--data", "tints", "--set", "run.rounds=3"],
            "--set run.rounds=3: only options of [net] and [train] can be set: net.key=value or train.key=value.\n",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_trained_is_said_and_nothing_is_written(words, message, command, tmp_path):  # noqa: F811
    (tmp_path / "old.safetensors").write_bytes(b"old")
    np.savez(tmp_path / "few.npz", x=np.zeros((4, 1, 16, 16)), y=np.arange(4))
    np.savez(tmp_path / "wide.npz", x=np.linspace(-1, 300, 10 * 256).reshape(10, 1, 16, 16), y=np.zeros(10, int))
    before = sorted(tmp_path.rglob("*"))
    out = [] if "--out" in words else ["--out", "below/new.safetensors"]
    code, shown, err = command("pretrain", "--threads", "1", *words, *out)
    assert (code, shown) == (2, "")
    assert err.startswith(f"protofed: {message}")
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "old.safetensors").read_bytes() == b"old"


def test_a_training_that_diverges_or_is_interrupted_writes_nothing(command, tmp_path, monkeypatch):  # noqa: F811
    code, _, err = command("pretrain", "--data", "tints", *SMALL, "--lr", "1e30", "--out", "a.safetensors")
    assert code == 2
    assert err == "protofed: Training diverged in epoch 1: the loss or a weight is not finite. Try a smaller --lr.\n"

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrain, "train_client", interrupted)
    code, _, err = command("pretrain", "--data", "tints", *SMALL, "--out", "a.safetensors")
    assert (code, err) == (130, "\nInterrupted.\nNothing was written.\n")
    assert list(tmp_path.iterdir()) == []


def test_grey_images_of_another_size_become_features_as_the_encoder_was_trained(command, tmp_path):  # noqa: F811
    command("pretrain", "--data", "tints", *SMALL, "--out", "e.safetensors")
    data = encode_dataset(halves(), DataSection(encoder=str(tmp_path / "e.safetensors")))
    assert data.train.shape == (32,)
    assert data.remark == "toy, features of e.safetensors, own pre-training on tints"
    net = make_net("resnet18", NETS["resnet18"](norm="group", width=4), (3, 20, 20), 3)
    mean, std = (torch.tensor(three)[:, None, None] for three in (IMAGENET_MEAN, IMAGENET_STD))
    x = (halves().test.x.float().expand(-1, 3, -1, -1) / 255 - mean) / std  # not by its own 0.1 and 0.2
    expected = net.embed(weights.read_weights(tmp_path / "e.safetensors"), channels_last(x))
    torch.testing.assert_close(data.test.x, expected, rtol=1e-4, atol=1e-4)
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 1
    code, out, _ = command(
        "run",
        "--set",
        "data.name=halves",
        "--set",
        "data.encoder=e.safetensors",
        "--set",
        "net.name=mlp_features",
        "--set",
        "partition.name=iid",
        "--set",
        "data.clients=2",
        "--set",
        "run.rounds=1",
        "--out",
        "run",
    )
    assert code == 0
    assert "halves (toy, features of e.safetensors, own pre-training on tints)" in out


@pytest.mark.parametrize("normalise", ["dataset", "client", "pooled"])
def test_features_are_standardised_by_nobody_by_each_client_or_by_all_together(normalise, command, tmp_path):  # noqa: F811
    command("pretrain", "--data", "tints", *SMALL, "--out", "e.safetensors")
    table = {
        "run": {"seed": 1},
        "data": {"name": "halves", "clients": 3, "encoder": str(tmp_path / "e.safetensors"), "normalise": normalise},
        "partition": {"name": "iid"},
        "eval": {"validation": 0.2},
    }
    members = Members.of(Config.of(table))
    raw = [part.x[part.index].double().numpy() for part in members.train]
    assert sum(map(len, raw)) < 40  # without the validation sets
    for train, validation, test, own in zip(members.train, members.validation, members.test, raw, strict=True):
        reference = {"dataset": None, "client": own, "pooled": np.concatenate(raw)}[normalise]
        mean, std = (0, 1) if reference is None else (reference.mean(0), reference.std(0))
        std = np.where(std > 1e-8, std, 1)
        for part in (train, validation, test):
            expected = (part.x[part.index].double().numpy() - mean) / std
            np.testing.assert_allclose(part.take(torch.arange(len(part)))[0], expected, rtol=1e-3, atol=1e-3)
    assert len(members.balanced) == (3 if normalise == "client" else 1)
    assert [part.input for part in members.balanced] == [part.input for part in members.train][: len(members.balanced)]


def test_an_encoder_whose_features_are_not_finite_is_refused(command, tmp_path):  # noqa: F811
    command("pretrain", "--data", "tints", *SMALL, "--out", "e.safetensors")
    layers, about = weights.read_weights_and_metadata(str(tmp_path / "e.safetensors"))
    save_file({name: value * math.nan for name, value in layers.items()}, tmp_path / "n.safetensors", about)
    with pytest.raises(
        UserError, match=r"n\.safetensors gives features that are not finite numbers\. Train it again\."
    ):
        encode_dataset(halves(), DataSection(encoder=str(tmp_path / "n.safetensors")))


def test_numbers_from_0_to_1_are_normalised_as_the_encoders_bytes_were(command, tmp_path):  # noqa: F811
    command("pretrain", "--data", "halves", *SMALL, "--out", "e.safetensors")
    section = DataSection(encoder=str(tmp_path / "e.safetensors"))
    data = encode_dataset(tints(), section)
    net = make_net("resnet18", NETS["resnet18"](norm="group", width=4), (3, 16, 16), 2)
    mean, std = (torch.tensor(three)[:, None, None] for three in (IMAGENET_MEAN, IMAGENET_STD))
    x = (tints().test.x - mean) / std
    expected = net.embed(weights.read_weights(tmp_path / "e.safetensors"), channels_last(x))
    torch.testing.assert_close(data.test.x, expected, rtol=1e-4, atol=1e-4)
    brighter = replace(tints(), train=replace(tints().train, x=3 * tints().train.x))
    with pytest.raises(UserError, match=r"do not fit the values of the images, from 7.\S+ to 2\.\d+\. Give bytes"):
        encode_dataset(brighter, section)


def test_threads_are_as_before_after_a_block():
    with threads(2):
        assert torch.get_num_threads() == 2
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 1
    assert cores() >= 1
