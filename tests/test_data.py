"""Every dataset: what is in it, and that it can be learned; your own file; and looking at them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import protofed
from protofed.data import tables
from protofed.data.dataset import Dataset, data_folder
from protofed.data.generated import IMBALANCED, arms, synthetic
from protofed.data.sources import SOURCES
from protofed.data.summary import size_statistics
from protofed.draws import random_state
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.experiment.config import Config
from protofed.experiment.members import Members
from test_cli import protofed as command  # noqa: F401

KNOWN = {  # training and test examples, of the first classes, shape, and the sum of the first training example
    "cifar10": (10_000, 2_000, [1000, 1000, 1000], (3, 32, 32), 216572),
    "cifar100": (5_000, 1_000, [50, 50, 50], (3, 32, 32), 634383),
    "digit5": (27_262, 7_937, [3187, 3066, 2727], (3, 32, 32), 98724),
    "digits": (1_442, 355, [143, 146, 142], (1, 8, 8), 294),
    "femnist": (4_848, 1_149, [479, 567, 479], (1, 28, 28), 5196),
    "heart_disease": (740, 180, [331, 409], (13,), 607.3),
    "mnist": (60_000, 10_000, [5923, 6742, 5958], (1, 28, 28), 27525),
    "mnist_m": (5_000, 1_500, [500, 500, 500], (3, 32, 32), 260068),
    "office_caltech10": (2_042, 491, [229, 188, 191], (3, 64, 64), 2046496),
    "pets": (1_600, 400, [80, 80, 80], (3, 64, 64), 1361429),
    "pets_masks": (1_600, 400, [80, 80, 80], (3, 64, 64), 1361429),
    "pets_masks_macro": (1_600, 400, [80, 80, 80], (3, 64, 64), 1361429),
    "spiral": (18_000, 18_000, [3000, 3000, 3000], (2,), 1.010682),
    "spiral_imbalanced": (5_905, 18_000, [3000, 1500, 750], (2,), 1.327283),
    "svhn": (4_977, 1_434, [500, 500, 500], (3, 32, 32), 225076),
    "synthdigits": (5_000, 1_500, [500, 500, 500], (3, 32, 32), 513612),
    "synthetic": (7_633, 1_877, [2741, 320, 170], (60,), -10.191368),
    "synthetic_0_0": (8_582, 2_108, [290, 304, 1421], (60,), 7.816015),
    "synthetic_05_05": (8_578, 2_112, [2499, 904, 2505], (60,), 9.662546),
    "synthetic_1_1": (8_577, 2_113, [2350, 1709, 906], (60,), 11.950179),
    "tiny_imagenet": (5_000, 1_250, [200, 200, 200], (3, 64, 64), 1164058),
    "uci_har": (8_314, 1_985, [1391, 1247, 1136], (9, 128), 36127),
    "usps": (7_291, 2_007, [1194, 1005, 731], (1, 16, 16), 22261),
}
MADE = ("digits", "spiral", "spiral_imbalanced", "synthetic", "synthetic_0_0", "synthetic_05_05", "synthetic_1_1")
FILES = {
    "pets_masks": "pets",
    "pets_masks_macro": "pets",
    "femnist": "femnist_digits",
    "synthdigits": "synthdigits_remade",
    "tiny_imagenet": "tiny_imagenet25",
}
NETS = {
    "cifar10": "lenet",
    "cifar100": "lenet",
    "digit5": "lenet",
    "femnist": "cnn",
    "mnist": "cnn",
    "mnist_m": "lenet",
    "office_caltech10": "cnn_celeba",
    "pets": "cnn_celeba",
    "pets_masks": "unet",
    "pets_masks_macro": "unet",
    "svhn": "lenet",
    "synthdigits": "lenet",
    "tiny_imagenet": "cnn_celeba",
    "uci_har": "cnn1d",
    "usps": "cnn",
    "spiral": "mlp_spiral",
    "spiral_imbalanced": "mlp_spiral",
    "synthetic": "mlp_synthetic",
    "synthetic_0_0": "mlp_synthetic",
    "synthetic_05_05": "mlp_synthetic",
    "synthetic_1_1": "mlp_synthetic",
}


def wanted(name: str) -> None:
    """Skip what needs a file that is not here."""
    files = [name] if name != "digit5" else ["mnist", "usps", "svhn", "mnist_m", "synthdigits"]
    for file in files:
        if file not in MADE and not (data_folder("") / f"{FILES.get(file, file)}.npz").exists():
            pytest.skip(
                f"no {FILES.get(file, file)}.npz in {data_folder('')}; set PROTOFED_DATA to the folder that has it"
            )


def test_every_dataset_is_known_here():
    assert KNOWN.keys() == SOURCES.keys() - {"npz", "table", "leaf", "voc", "voc_macro"}


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_what_is_in_it(name):
    wanted(name)
    data = SOURCES[name]("")
    train, test, first, shape, pixels = KNOWN[name]
    assert (len(data.train), len(data.test), data.train.shape) == (train, test, shape)
    counts = data.train.labels.bincount(minlength=len(data.image_labels or data.labels))
    assert counts[: len(first)].tolist() == first
    assert (counts > 0).all()
    assert float(data.train.x[data.train.index[0]].double().nansum()) == pytest.approx(pixels, rel=1e-6)
    assert data.train.x.dtype in (torch.uint8, torch.int16, torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KNOWN))
@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_a_round_on_it(name, method):
    wanted(name)
    table = {
        "run": {"rounds": 1},
        "data": {"name": name, "clients": 5},
        "partition": {"name": "iid"},
        "net": {"name": NETS.get(name, "mlp")},
        "method": {"name": method},
        "train": {"batch": 64},
    }
    result = protofed.run(table)
    assert result.summary["loss"]["supervised"] > 0
    assert 0 <= result.summary["accuracy"]["head"]["mean"] <= 1
    if method == "fedproto":
        assert (result.prototypes.support.sum(1) > 0).all()


@pytest.mark.parametrize("name", ["usps", "cifar10", "femnist", "office_caltech10", "heart_disease", "uci_har"])
def test_what_is_not_there_says_what_it_wants(name, tmp_path):
    with pytest.raises(UserError, match=rf"{name}: there is no file \w+.npz in .*The data are published at \S+"):
        SOURCES[name](str(tmp_path))


def test_a_whole_dataset_is_not_called_a_subset(tmp_path, monkeypatch):
    from protofed.data import images

    monkeypatch.setitem(images.COMPLETE_SIZES, "cifar10", 7)
    for count, remark in ((7, ""), (6, "subset")):
        x, y = np.zeros((count, 32, 32, 3), np.uint8), np.zeros(count, np.uint8)
        np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        assert SOURCES["cifar10"](str(tmp_path)).remark == remark


def test_channels_come_first(tmp_path):
    x = np.arange(32 * 32 * 3, dtype=np.int64).reshape(1, 32, 32, 3).astype(np.uint8)
    np.savez(tmp_path / "mnist_m.npz", x_train=x, y_train=np.array([3]), x_test=x, y_test=np.array([3]))
    data = SOURCES["mnist_m"](str(tmp_path))
    assert data.train.x[0, 2, 5, 7] == x[0, 5, 7, 2]


# Data that are made


def test_the_synthetic_generator_has_the_moments_of_the_paper():
    """S1.1, over many clients: Sigma_jj = j^-1.2 within a client; client means v_k of variance 1 + phi2."""
    data = synthetic(data_folder(""), phi1=1.0, phi2=4.0, clients=400, stream="moments")
    x = np.concatenate([data.train.x.numpy()])[:, :60]
    group = np.empty(len(x), int)
    group[data.train.index], group[data.test.index] = data.train_group, data.test_group
    within = np.array([x[group == k].var(0, ddof=1) for k in range(400)]).mean(0)
    np.testing.assert_allclose(within, np.arange(1, 61) ** -1.2, rtol=0.1)
    means = np.array([x[group == k].mean(0) for k in range(400)])
    assert means.var() == pytest.approx(5.0, rel=0.15)  # v_k ~ N(B_k, 1), B_k ~ N(0, 4)
    assert means.mean(1).var() == pytest.approx(4.0, rel=0.25)
    sizes = np.bincount(group)
    assert sizes.min() >= 50
    assert np.median(sizes - 50) == pytest.approx(np.exp(4), rel=0.35)  # log-normal (4, 2)


def test_fedprox_synthetic_has_the_sizes_and_the_skew_of_the_published_file():
    """Prototype-guided FL's Table 1 has nine tenths of it: 9,600 examples, mean 320.0, standard deviation 1,051.6."""
    data = SOURCES["synthetic_1_1"]("")
    assert data.train_group is not None
    assert data.test_group is not None
    sizes = np.bincount(data.train_group) + np.bincount(data.test_group)
    about = size_statistics(np.floor(0.9 * sizes).astype(int).tolist())
    assert about["clients"] == 30
    assert about["examples"] == pytest.approx(9_600, abs=10)
    assert about["std"] == pytest.approx(1051.6, abs=0.1)
    y = torch.cat([data.train.labels, data.test.labels]).numpy()
    group = np.concatenate([data.train_group, data.test_group])
    most_frequent = sum(np.bincount(y[group == client]).max() for client in range(30))
    assert most_frequent / len(y) == pytest.approx(0.59, abs=0.005)


def test_fedprox_alpha_and_beta_are_standard_deviations_between_clients():
    """The same draws, scaled: with alpha = beta = 0 the inputs of all clients have means around 0."""
    means = {}
    for name, beta in (("synthetic_0_0", 0.0), ("synthetic_05_05", 0.5), ("synthetic_1_1", 1.0)):
        data = SOURCES[name]("")
        x = data.train.x[data.train.index].numpy()
        means[beta] = np.array([x[data.train_group == client].mean() for client in range(30)])
    between = means[1.0] - means[0.0]  # B_k; the rest are averages of the same draws
    assert 0.6 < between.std() < 1.4
    assert means[0.5] - means[0.0] == pytest.approx(between / 2, abs=1e-2)


def test_synthetic_labels_are_the_argmax_of_one_linear_model_a_client():
    """A linear model fitted to one client's data answers nearly all of them."""
    data = synthetic(data_folder(""))
    client = np.bincount(data.train_group).argmax()
    own = data.train.index[torch.from_numpy(data.train_group == client)]
    x, y = data.train.x[own].double(), data.train.y[own]
    weights = torch.zeros(61, 10, dtype=torch.double, requires_grad=True)
    inputs = torch.cat([x, torch.ones(len(x), 1)], 1)
    optimiser = torch.optim.LBFGS([weights], max_iter=200)

    def closure():
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(inputs @ weights, y)
        loss.backward()
        return loss

    optimiser.step(closure)
    assert ((inputs @ weights).argmax(1) == y).double().mean() > 0.98


def test_spiral_arms_by_hand():
    """As in the code of FedNH's authors: the angle is measured from the second axis, and the noise is not negative."""
    points, arm = arms((5, 3), 0.0, random_state(0))
    radius, angle = np.hypot(*points.T), np.arctan2(*points.T)
    np.testing.assert_allclose(radius[:5], [1, 3.25, 5.5, 7.75, 10], rtol=1e-5)
    np.testing.assert_allclose(angle[:5], np.linspace(0, np.pi / 3, 5), atol=1e-5)
    np.testing.assert_allclose(angle[5:], np.linspace(np.pi / 3, 2 * np.pi / 3, 3), atol=1e-5)
    assert arm.tolist() == [0] * 5 + [1] * 3


def test_the_noise_of_the_spiral_is_uniform_from_0_to_half_a_radian():
    data = SOURCES["spiral"]("")
    x, y = data.train.take(torch.arange(3000))  # arm 0; its inputs are not scaled
    noise = np.arctan2(*x.numpy().T.astype(float)) - np.linspace(0, np.pi / 3, 3000)
    assert (y == 0).all()
    assert -1e-5 < noise.min() < 0.01
    assert 0.49 < noise.max() < 0.5 + 1e-5
    assert noise.mean() == pytest.approx(0.25, abs=4 * 0.5 / np.sqrt(12 * 3000))  # four standard errors
    assert np.bincount(SOURCES["spiral_imbalanced"]("").train.labels).tolist() == list(IMBALANCED)


# Some of the domains


def of_three_places() -> Dataset:
    x = np.arange(8, dtype=np.float32)[:, None]
    train, test = (Examples.of(part, np.arange(len(part)) % 2) for part in (x[:5], x[5:]))
    return Dataset("toy", train, test, (0, 1), ("a", "b", "c"), np.array([2, 0, 1, 2, 0]), np.array([0, 2, 1]), "small")


def test_only_the_examples_of_the_named_domains_are_used():
    data = of_three_places().from_domains(["c", "b"])
    assert data.groups == ("b", "c")
    assert data.train.take(torch.arange(3))[0].flatten().tolist() == [0, 2, 3]
    assert data.test.take(torch.arange(2))[0].flatten().tolist() == [6, 7]
    assert [data.groups[number] for number in data.train_group] == ["c", "b", "c"]
    assert [data.groups[number] for number in data.test_group] == ["c", "b"]
    assert data.remark == "small, only b, c"


def test_domains_that_are_not_there_are_named():
    with pytest.raises(UserError) as caught:
        of_three_places().from_domains(["b", "photo"])
    assert str(caught.value) == "data.domains: got photo, but toy has the domains a, b, c. Use these names."
    with pytest.raises(UserError) as caught:
        protofed.run({"data": {"domains": ["a"]}})
    assert str(caught.value) == (
        "data.domains: got a, but digits does not say where each example comes from. Leave data.domains out."
    )


def test_one_domain_divided_by_class():
    """MP-FedCL's label skew with the same feature distribution: every client has examples of the one domain."""
    table = {
        "run": {"rounds": 1},
        "data": {"name": "synthetic", "domains": ["client 3"], "clients": 2},
        "partition": {"name": "iid"},
        "method": {"name": "local"},
    }
    result, data = protofed.run(table), SOURCES["synthetic"]("")
    members = result.state.members
    assert members.groups == ("client 3", "client 3")
    assert sum(map(len, members.train)) == np.count_nonzero(data.train_group == 3)
    assert len(members.balanced[0]) == np.count_nonzero(data.test_group == 3)
    assert result.summary["remark"] == "generated, only client 3"


# Your own file


def test_npz_with_names_clients_and_a_test_set(tmp_path):
    x, y = np.random.RandomState(0).normal(size=(60, 4)), np.array(["b", "a", "c"] * 20)
    np.savez(tmp_path / "mine.npz", x=x, y=y, client=np.repeat(["east", "west"], 30))
    data = SOURCES["npz"](str(tmp_path / "mine.npz"))
    assert (data.labels, data.groups) == (("a", "b", "c"), ("east", "west"))
    assert (len(data.train), len(data.test)) == (48, 12)
    assert data.train.labels[:3].tolist() == [1, 0, 2]
    table = {"run": {"rounds": 2}, "data": {"name": "npz", "root": str(tmp_path / "mine.npz")}}
    result = protofed.run({**table, "partition": {"name": "natural"}})
    assert [row["group"] for row in result.clients] == ["east", "west"]
    images = (np.arange(10 * 16) % 256).reshape(10, 1, 4, 4).astype(np.uint8)
    np.savez(tmp_path / "images.npz", x=images, y=np.arange(10) % 2, x_test=images, y_test=np.arange(10) % 2)
    data = SOURCES["npz"](str(tmp_path / "images.npz"))
    assert (len(data.train), len(data.test), data.train.scale) == (10, 10, 255.0)


def test_npz_with_clients_and_a_test_set(tmp_path):
    x, y, who = np.zeros((6, 2)), np.arange(6) % 2, np.array(["b", "a"] * 3)
    np.savez(tmp_path / "mine.npz", x=x, y=y, client=who, x_test=x[:2], y_test=y[:2], client_test=who[:2])
    data = SOURCES["npz"](str(tmp_path / "mine.npz"))
    assert data.groups == ("a", "b")
    assert (data.train_group.tolist(), data.test_group.tolist()) == ([1, 0] * 3, [1, 0])


def test_a_folder_of_npy_files_is_mapped_not_read(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.zeros((20, 3), np.float32))
    np.save(tmp_path / "y.npy", np.arange(20) % 2)
    arrays = tables.memory_mapped(tmp_path)
    assert isinstance(arrays["x"], np.memmap)
    monkeypatch.setattr(tables, "memory_mapped", lambda where: arrays)
    data = SOURCES["npz"](str(tmp_path))
    assert len(data.train) == 16
    assert np.shares_memory(data.train.x.numpy(), arrays["x"])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((3, 2))}, "has no array y; it has x."),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3, int), "x_test": np.zeros((3, 2))}, "has no array y_test"),
        (
            {"x": np.zeros((3, 2)), "y": np.zeros(3, int), "client": np.zeros(2)},
            "`client` has 2 entries for 3 examples",
        ),
        ({"x": np.zeros(3), "y": np.zeros(3, int)}, r"x has shape \[3\] and type float64; must be numbers"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(2, int)}, "has 3 inputs and 2 labels. Give one label per input"),
        (
            {"x": np.zeros((3, 2)), "y": np.array(["a", "b", "c"]), "classes": np.array(["a", "b"])},
            "there is no class 'c'",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said(arrays, message, tmp_path):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(UserError, match=message):
        SOURCES["npz"](str(tmp_path / "mine.npz"))


# Files of LEAF and FedProx


def leaf_file(folder, part: str, users: dict[str, tuple[list, list]], name: str = "all_data_0.json") -> None:
    (folder / part).mkdir(exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    (folder / part / name).write_text(json.dumps(content))


def test_a_file_of_leaf_by_hand(tmp_path):
    leaf_file(tmp_path, "train", {"f_1": ([[1.0, 2.0], [3.0, 4.0]], [2.0, 0.0]), "f_0": ([[5.0, 6.0]], [1.0])})
    leaf_file(tmp_path, "train", {"f_2": ([[7.0, 8.0]], [0.0])}, "more.json")
    leaf_file(tmp_path, "test", {"f_0": ([[9.0, 9.0]], [1.0]), "f_1": ([], [])})
    data = SOURCES["leaf"](str(tmp_path))
    assert (data.groups, data.labels) == (("f_1", "f_0", "f_2"), (0, 1, 2))
    assert data.train.x.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([2, 0, 1, 0], [1])
    assert data.train_group is not None
    assert data.test_group is not None
    assert (data.train_group.tolist(), data.test_group.tolist()) == ([0, 0, 1, 2], [1])
    table = {
        "run": {"rounds": 1},
        "data": {"name": "leaf", "root": str(tmp_path)},
        "partition": {"name": "natural"},
        "method": {"name": "fedavg"},
    }
    assert [len(train) for train in protofed.run(table).state.members.train] == [2, 1, 1]


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ({"f_0": ([[1.0]], [0.5])}, "user f_0 has a label that is not a whole number"),
        ({"f_0": ([[1.0]], [0, 1])}, "user f_0 has 1 inputs and 2 labels"),
        ({"f_0": (["be"], [1])}, "cannot be read as a file of LEAF: .*'be'.* inputs must be numbers"),
        (
            {"f_0": ([[1.0]], [0]), "f_1": ([[1.0, 2.0]], [0])},
            r"user f_1 has the shape \[2\], but one of user f_0 has \[1\]",
        ),
        ({"f_0": ([], [])}, "no user in .*train has an example"),
        (None, r"there is no .json file in .*train\. Give the folder that has train/"),
    ],
)
def test_what_is_wrong_with_a_file_of_leaf_is_said(users, message, tmp_path):
    if users:
        leaf_file(tmp_path, "train", users)
    leaf_file(tmp_path, "test", {"f_0": ([[1.0]], [0])})
    with pytest.raises(UserError, match=message):
        SOURCES["leaf"](str(tmp_path))


# The test set among the training examples


def test_merged_every_client_is_tested_on_a_fifth_of_its_share_of_all_examples():
    words = ["data.clients=5", "partition.name=iid", "eval.test=merged"]
    members = Members.of(Config.load(None, words))
    assert sum(map(len, members.train)) + sum(map(len, members.test)) == 1_442 + 355
    for train, test in zip(members.train, members.test, strict=True):
        assert len(test) / (len(train) + len(test)) == pytest.approx(0.2, abs=10 / 359)  # rounded down per class
        assert not set(train.index.tolist()) & set(test.index.tolist())
    (balanced,) = members.balanced
    assert balanced.index.tolist() == [row for test in members.test for row in test.index.tolist()]
    plain = SOURCES["digits"]("")
    merged = plain.with_test_set_in_training_set()
    assert torch.equal(merged.train.labels, torch.cat([plain.train.labels, plain.test.labels]))
    assert torch.equal(merged.train.x[-1], plain.test.x[plain.test.index[-1]])


def test_nway_says_that_merged_leaves_no_test_set():
    with pytest.raises(UserError, match=r"nway takes .* from the test set, which is empty .* Use another partition"):
        Members.of(Config.load(None, ["eval.test=merged"]))


def test_merged_keeps_the_origin_of_the_examples():
    plain = SOURCES["synthetic"]("")
    merged = plain.with_test_set_in_training_set()
    assert plain.train_group is not None
    assert plain.test_group is not None
    assert merged.train_group is not None
    assert merged.train_group.tolist() == [*plain.train_group.tolist(), *plain.test_group.tolist()]
    assert len(merged.test) == 0


# Looking at data


def test_info_tells_shapes_classes_sizes_and_a_histogram(command):  # noqa: F811
    code, out, _ = command("data", "info", "digits")
    assert code == 0
    assert out.startswith(
        "digits: 1,442 training and 355 test examples of 10 classes\ninputs 1 x 8 x 8, stored as uint8\n"
    )
    assert "0     143 /     35  ███" in out
    about = json.loads(command("data", "info", "synthetic", "--json")[1])
    assert (about["classes"], len(about["groups"]), about["remark"]) == (10, 30, "generated")
    assert command("data", "info", "digit")[2].startswith(
        'protofed: There is no dataset "digit". Did you mean "digits"?'
    )


@pytest.mark.parametrize("clients", [8, 100])
def test_a_picture_of_who_holds_what(clients, command, tmp_path):  # noqa: F811
    words = ("--set", f"data.clients={clients}", "--set", "partition.name=power_law", "--set", "partition.smallest=0")
    code, out, _ = command("data", "show", *words, "--out", "p.png")
    assert code == 0
    assert "training examples, 1,442 in all (mean" in out
    assert "355 test examples. Written to p.png." in out
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert "already exists" in command("data", "show", "--out", "p.png")[2]
    assert "must end in .png, .svg or .pdf" in command("data", "show", "--out", "p.doc")[2]
