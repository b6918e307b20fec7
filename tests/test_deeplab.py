"""DeepLab-V3+: its encoders, the weights they start from, and stacks of it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from importlib import util

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from protofed.data.dataset import Dataset
from protofed.data.partitions.base import Holding
from protofed.data.sources import SOURCES, Source
from protofed.engines.loop import Loop
from protofed.engines.stacked import Stacked
from protofed.errors import UserError
from protofed.examples import IGNORED, Examples
from protofed.experiment.config import Config
from protofed.experiment.member_nets import build_nets, load_net_weights
from protofed.experiment.members import Members
from protofed.net import Net
from protofed.nets import NETS, make_net
from protofed.nets.weights import PUBLISHED, read_weights
from toys import config, everything, played_on

INSTALLED = util.find_spec(PUBLISHED["efficientnet_lite0"][0]) is not None
LITE0 = {"name": "deeplab", "encoder": "efficientnet_lite0", "norm": "batch", "rates": [1, 2]}


def deeplab(side: int = 32, classes: int = 3, **options: object) -> Net:
    design = replace(NETS["deeplab"](rates=(1, 2), encoder="efficientnet_lite0"), **options)
    return make_net("deeplab", design, (3, side, side), classes)


def lite0(side: int = 32) -> Net:
    return make_net("efficientnet_lite0", NETS["efficientnet_lite0"](), (3, side, side), 5)


def parameters(net: Net, beginning: str) -> int:
    sizes = {name: torch.Size(shape).numel() for name, shape in net.shapes.items() if name in net.trainable}
    return sum(size for name, size in sizes.items() if name.startswith(beginning))


def images(number: int, side: int) -> torch.Tensor:
    return torch.randn(number, 3, side, side, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_the_encoder_has_the_layers_of_the_classifier(norm):
    net = deeplab(last=True, norm=norm)
    assert parameters(net, "body.encoder.") == parameters(lite0(), "body.") == 3_371_008
    assert parameters(deeplab(norm=norm), "body.encoder.") == 3_371_008 - (320 + 2) * 1280  # without its last layer
    assert net.trains_alone == (norm == "batch")


@pytest.mark.parametrize("stride", [8, 16])
def test_shapes_of_maps(stride):
    net = deeplab(32, width=0.25, stride=stride, norm="group")
    z, logits = net(net.init(torch.Generator().manual_seed(0)), torch.zeros(2, 3, 32, 32))
    assert net.grid == (32 // stride, 32 // stride)
    assert z.shape == (2 * (32 // stride) ** 2, net.dim)
    assert logits.shape == (2 * 32 * 32, 3)
    low, high = net.module["body"].encoder(torch.zeros(1, 3, 32, 32))
    assert low.shape == (1, 8, 8, 8)  # 24 channels at full width: 6, and at least 8
    assert high.shape == (1, 80, 32 // stride, 32 // stride)


def encoder_with_weights_of(classifier: Net, stride: int) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The body of a classifier and an encoder of maps, with the same random weights and statistics."""
    params = classifier.init(torch.Generator().manual_seed(3))
    draw = torch.Generator().manual_seed(4)
    for name, value in params.items():
        if name.endswith(("running_mean", "running_var")):
            params[name] = value + torch.rand(value.shape, generator=draw)
    net = deeplab(stride=stride, last=True, norm="batch").starting_from(params)
    body = classifier.parts(params)["body"]
    return body, net.parts(net.init(torch.Generator()))["body"].encoder


@pytest.mark.parametrize(("stride", "step"), [(16, 2), (8, 4)])
def test_features_are_those_of_the_classifier_where_both_have_them(stride, step):
    """A stride of 2 keeps the outputs at odd positions ("same" padding of even sides). With a dilation in its place, the
    encoder has these outputs, and others between them. So the last map at positions 1, 3, ... is the classifier's; for
    two such strides, at positions 3, 7, ... In double precision, sums in another order differ by about 1e-15 of values
    up to 6."""
    body, encoder = (module.double() for module in encoder_with_weights_of(lite0(), stride))
    x = images(1, 32).double()
    low, high = encoder(x)
    torch.testing.assert_close(low, body[:6](x), rtol=0, atol=1e-12)  # stem and three blocks
    expected = body[:-2](x)  # without the mean over positions
    assert expected.shape == (1, 1280, 1, 1)
    torch.testing.assert_close(high[:, :, step - 1 :: step, step - 1 :: step], expected, rtol=0, atol=1e-12)
    assert expected.std() > 1e-3


def test_weights_of_a_classifier_fit_the_encoder(tmp_path):
    """A file that `protofed pretrain` could have written, and the constants of its inputs."""
    params = lite0().init(torch.Generator().manual_seed(3))
    constants = {"shape": [3, 64, 64], "scale": 255.0, "mean": 0.25, "std": 0.5}
    metadata = {"source": json.dumps({"name": "efficientnet_lite0"}), "input": json.dumps(constants)}
    save_file(params, tmp_path / "e.safetensors", metadata)
    config = Config.of({"net": {**LITE0, "weights": str(tmp_path / "e.safetensors")}})
    (net,), (note,) = load_net_weights(config, build_nets(config, [(3, 64, 64)], 3))
    assert torch.equal(
        net.init(torch.Generator())["body.encoder.block9.conv2.weight"], params["body.block9.conv2.weight"]
    )
    assert " 288 of 358 tensors from " in note
    assert note.endswith("body.pyramid.point.norm.num_batches_tracked and 64 more")
    config = Config.of({"net": {**LITE0, "norm": "group", "weights": str(tmp_path / "e.safetensors")}})
    _, (note,) = load_net_weights(config, build_nets(config, [(3, 64, 64)], 3))
    assert note.endswith("; it was trained with batch norm, the statistics of which this net has no place for")


def test_inputs_can_have_the_constants_of_the_weights(tmp_path, monkeypatch):
    draw = np.random.RandomState(0)
    x, y = draw.randint(0, 256, (8, 3, 16, 16), np.uint8), np.arange(8) % 2
    part = Examples.of(x, y, 255.0, 0.1, 0.2)
    toy = Dataset("toy", part, part, (0, 1))
    monkeypatch.setitem(SOURCES, "digits", Source("toy", lambda folder: toy))
    net = make_net("mlp", NETS["mlp"](), (3, 16, 16), 2)
    constants = {"shape": [3, 16, 16], "scale": 255.0, "mean": 127 / 255, "std": 128 / 255}
    save_file(net.init(torch.Generator()), tmp_path / "e.safetensors", {"input": json.dumps(constants)})
    save_file(net.init(torch.Generator()), tmp_path / "silent.safetensors")

    def members(**options: object) -> Members:
        table = {"data": {"clients": 2, "normalise": "weights"}, "net": options, "partition": {"name": "iid"}}
        return Members.of(Config.of(table))

    made = members(weights=str(tmp_path / "e.safetensors"))
    expected = (torch.from_numpy(x).float() - 127) / 128
    for examples in (*made.train, *made.balanced):
        # two roundings of numbers of up to 2 (the division by 255 and the constants) are 1 ulp of 2 each
        got = examples.take(torch.arange(len(examples)))[0]
        torch.testing.assert_close(got, expected[examples.index], rtol=0, atol=1e-6)
    with pytest.raises(UserError, match=r'"weights" takes the constants of net.weights, so all nets must start from'):
        members()
    with pytest.raises(UserError, match=r"silent.safetensors does not say how its inputs were normalised"):
        members(weights=str(tmp_path / "silent.safetensors"))


@pytest.mark.skipif(not INSTALLED, reason="needs the published weights")
def test_published_weights_are_loaded():
    config = Config.of({"net": {**LITE0, "last": True, "weights": "efficientnet_lite0"}})
    (net,), (note,) = load_net_weights(config, build_nets(config, [(3, 32, 32)], 3))
    published = read_weights("efficientnet_lite0")
    loaded = {name for name in net.initial_params if name.startswith("body.encoder.")}
    assert {name.replace("encoder.", "", 1) for name in loaded} == {n for n in published if n.startswith("body.")}
    assert " 294 of " in note
    params = net.init(torch.Generator().manual_seed(0))
    encoder = net.parts(params)["body"].encoder
    classifier = lite0().starting_from(published)
    body = classifier.parts(classifier.init(torch.Generator()))["body"]
    x = (torch.arange(3 * 32 * 32).reshape(1, 3, 32, 32) ** 2 % 251 - 127) / 128
    high = encoder.double()(x.double())[1][:, :, 1::2, 1::2]
    torch.testing.assert_close(high, body[:-2].double()(x.double()), rtol=0, atol=1e-9)


# Stacks


def pictures(number: int, seed: int) -> Examples:
    """Images of 16x16 with squares of three classes, and a row of pixels without a label."""
    draw = np.random.RandomState(seed)
    mask = draw.randint(0, 3, (number, 4, 4)).repeat(4, 1).repeat(4, 2)
    x = np.stack([mask == 0, mask == 1, mask == 2], 1) + 0.3 * draw.normal(size=(number, 3, 16, 16))
    mask[:, 0] = IGNORED
    return Examples.of(x.astype(np.float32), mask[:, 8, 8], mask=mask)


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["mobilenetv2", "efficientnet_lite0"])
@pytest.mark.parametrize("patience", [1, 30])
def test_stacks_of_deeplab_are_the_loop(encoder, patience):
    """Three clients, one of them with a short batch; two rounds. With a patience of 1, the second one is replayed."""
    design = NETS["deeplab"](width=0.125, stride=8, rates=(1,), encoder=encoder)
    net, sizes = make_net("deeplab", design, (3, 16, 16), 3), (4, 4, 3)
    parts = tuple(Holding(np.arange(size), np.arange(2)) for size in sizes)
    train, test = (tuple(pictures(size, seed + size) for size in sizes) for seed in (0, 10))
    members = Members("masks", ("ground", "a", "b"), (net,) * 3, train, test, (pictures(4, 20),), parts)
    experiment = config("fedavg", rounds=2, train={"batch": 4, "lr": 0.02})
    spec, runner = (played_on(kind, experiment, members) for kind in (Loop, partial(Stacked, patience=patience)))
    start = net.init(spec.members.server(0, 0).generator("start"))
    torch.testing.assert_close(everything(runner), everything(spec), rtol=1e-4, atol=1e-4)
    assert [len(group) for group in runner.engine.groups(0, dict.fromkeys(range(3), ()))] == [3]
    moved = [(value - start[name]).abs().max() for name, value in spec.server.params.items()]
    assert max(moved) > 0.01
