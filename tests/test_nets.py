"""The papers' nets: how many parameters they have, and what they give."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from protofed.draws import DrawFrom, generator
from protofed.errors import UserError
from protofed.nets import NETS, make_net
from protofed.nets.efficientnet import _same_convolution

SHAPES = {"mlp_features": (512,), "mlp_spiral": (2,), "mlp_synthetic": (60,), "cnn1d": (9, 128)}


def net(name, shape, classes=10, **options):
    return make_net(name, NETS[name](**options), shape, classes)


def size(made) -> int:
    params = made.init(torch.Generator())
    return sum(params[name].numel() for name in made.trainable)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "count"),
    [
        ("cnn", (1, 28, 28), 10, {}, 21_840),  # FedProto's MNIST net
        ("cnn_fednh", (3, 32, 32), 10, {}, 797_952),  # FedNH
        ("resnet18", (3, 224, 224), 1000, {"stem": "imagenet"}, 11_689_512),  # as published
        ("resnet18", (3, 32, 32), 10, {"norm": "group"}, 11_173_962),
        ("efficientnet_lite0", (3, 224, 224), 1000, {}, 4_652_008),  # as published
        ("linear", (1280,), 10, {}, 12_810),
        ("mlp_mpfedcl", (1, 28, 28), 10, {}, 798_474),  # MP-FedCL, Table II
        ("mlp_features", (512,), 10, {}, 133_898),  # MP-FedCL, Table II: what is exchanged
        ("lenet", (3, 32, 32), 10, {}, 62_006),
        ("mlp_synthetic", (60,), 10, {}, 60 * 128 + 128 + 128 * 256 + 256 + 256 * 10 + 10),
        ("cnn256", (1, 28, 28), 10, {}, 32 * 25 + 32 + 64 * 32 * 25 + 64 + 64 * 49 * 256 + 256 + 2570),
        ("mlp_spiral", (2,), 6, {}, (2 * 16 + 16) + (16 * 8 + 8) + (8 * 4 + 4) + (4 * 2 + 2) + 2 * 6),
    ],
)
def test_numbers_of_parameters(name, shape, classes, options, count):
    assert size(net(name, shape, classes, **options)) == count


@pytest.mark.parametrize("name", sorted(NETS))
def test_every_net_embeds_and_decides_and_is_drawn_from_its_generator(name):
    shape = SHAPES.get(name, (3, 32, 32))
    made = net(name, shape)
    first, second, other = (made.init(generator(seed)) for seed in (0, 0, 1))
    assert all(torch.equal(value, second[key]) for key, value in first.items())
    assert any(not torch.equal(value, other[key]) for key, value in first.items())
    z, logits = made(first, torch.randn(2, *shape, generator=generator("x")))
    if made.grid:  # it labels pixels
        assert z.shape == (2 * made.grid[0] * made.grid[1], made.dim)
        assert logits.shape == (2 * 32 * 32, 10)
    else:
        assert z.shape == (2, made.dim)
        assert logits.shape == (2, 10)
        assert torch.equal(made.head(first, z), logits)
    assert all(key.startswith(("body.", "head.")) for key in first)


def test_convolutions_are_named_apart():
    """FedPer's share in FedProto's tables: 20 clients x 5,280 numbers on MNIST."""
    params = net("cnn", (1, 28, 28)).init(torch.Generator())
    assert sum(value.numel() for name, value in params.items() if name.startswith("body.conv")) == 5_280
    params = net("cnn", (1, 28, 28), kernel=3).init(torch.Generator())
    assert sum(value.numel() for name, value in params.items() if name.startswith("body.conv")) == 5_120  # FEMNIST


def test_strides_make_different_resnets_with_the_same_embedding():
    nets = [net("resnet18", (3, 32, 32), stem="imagenet", strides=strides, width=8) for strides in ((1, 4), (2, 2))]
    assert nets[0].dim == nets[1].dim == 64
    x = torch.randn(2, 3, 32, 32, generator=generator("x"))
    params = nets[0].init(generator("p"))
    assert not torch.equal(nets[0].embed(params, x), nets[1].embed(params, x))


def test_residual_blocks_add_their_input():
    made = net("resnet18", (3, 16, 16), width=4, norm="group")
    params = {name: value * ("conv2" not in name) for name, value in made.init(generator("p")).items()}
    block = made.parts(params)["body"].layer1[0]
    x = torch.rand(1, 4, 8, 8, generator=generator("x"))
    torch.testing.assert_close(block(x), x)  # what is added is 0, and x is positive


def test_narrow_shortcuts_pick_every_other_pixel_before_they_convolve():
    for width, strides in ((4, [(1, 1), (1, 1), (2, 2)]), (16, [(2, 2)] * 3)):
        body = net("resnet18", (3, 16, 16), width=width, norm="group").module["body"]
        blocks = [body.layer2[0], body.layer3[0], body.layer4[0]]
        assert [block.short.conv.stride for block in blocks] == strides
    short = net("resnet18", (3, 16, 16), width=4, norm="group").module["body"].layer2[0].short
    x = torch.randn(2, 4, 8, 8, generator=generator("x"))
    torch.testing.assert_close(short[:2](x), F.conv2d(x, short.conv.weight, stride=2))


def test_efficientnet_lite0_has_the_blocks_that_were_published():
    made = net("efficientnet_lite0", (3, 64, 64), 1000)
    assert made.dim == 1280
    assert made.linear_head == "head.out.weight"
    layers = {
        "body.conv1.weight": (32, 3, 3, 3),
        "body.norm1.running_mean": (32,),
        "body.block1.conv2.weight": (32, 1, 3, 3),
        "body.block4.conv1.weight": (144, 24, 1, 1),
        "body.block4.conv2.weight": (144, 1, 5, 5),
        "body.block4.conv3.weight": (40, 144, 1, 1),
        "body.block16.norm3.bias": (320,),
        "body.conv2.weight": (1280, 320, 1, 1),
        "head.out.weight": (1000, 1280),
    }
    assert {name: made.shapes[name] for name in layers} == layers
    assert "body.block1.conv1.weight" not in made.shapes  # it does not expand
    blocks = [made.module["body"].get_submodule(f"block{number}") for number in range(1, 17)]
    assert [number for number, block in enumerate(blocks, 1) if block.conv2.stride == (2, 2)] == [2, 4, 6, 12]
    assert [number for number, block in enumerate(blocks, 1) if block.adds_input] == [3, 5, 7, 8, 10, 11, 13, 14, 15]
    norms = [layer for layer in made.module.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    assert len(norms) == 2 + 3 * 16 - 1
    assert {(layer.eps, layer.momentum) for layer in norms} == {(1e-3, 0.01)}


@pytest.mark.parametrize(
    ("side", "kernel", "stride", "covered"),
    [
        (4, 3, 2, [3, 2]),  # one pixel is added, after the image: the kernel covers 0 to 2, then 2 to 4
        (5, 3, 2, [2, 3, 2]),  # one before, one after
        (4, 5, 2, [4, 3]),  # one before, two after
        (3, 3, 1, [2, 3, 2]),
        (4, 1, 1, [1, 1, 1, 1]),
    ],
)
def test_images_are_padded_as_tensorflow_does(side, kernel, stride, covered):
    """A kernel of ones on an image of ones counts the pixels of the image that it covers."""
    with DrawFrom(torch.Generator()):
        layer = _same_convolution((side, 5), 1, 1, kernel, stride)
    wide = {(3, 1): [2, 3, 3, 3, 2], (3, 2): [2, 3, 2], (5, 2): [3, 5, 3], (1, 1): [1] * 5}[kernel, stride]
    torch.nn.init.ones_(layer.weight)
    counts = layer(torch.ones(1, 1, side, 5)).detach()
    assert counts[0, 0].tolist() == torch.outer(torch.tensor(covered), torch.tensor(wide)).tolist()


def test_options_of_dense_nets():
    x = torch.randn(50, 4, generator=generator("x"))
    plain = net("mlp", (4,), embedding="linear", logits="relu", bias=False)
    z, logits = plain(plain.init(generator("p")), x)
    assert z.min() < 0 <= logits.min()
    assert "head.out.bias" not in plain.shapes
    usual = net("mlp", (4,))
    z, logits = usual(usual.init(generator("p")), x)
    assert z.min() >= 0 > logits.min()


def test_a_linear_net_embeds_the_input_as_it_is():
    made = net("linear", (2, 3), 4)
    x = torch.randn(5, 2, 3, generator=generator("x"))
    params = made.init(generator("p"))
    z, logits = made(params, x)
    assert torch.equal(z, x.flatten(1))
    torch.testing.assert_close(logits, x.flatten(1) @ params["head.out.weight"].T + params["head.out.bias"])


@pytest.mark.parametrize("norm", ["none", "batch", "group"])
def test_convnets_for_images_and_signals(norm):
    for shape in ((3, 16, 16), (5, 40)):
        made = net("convnet", shape, channels=(4, 6), dense=(7,), norm=norm)
        assert made.dim == 7
        assert made.has_batch_norm == (norm == "batch")
    assert net("cnn_celeba", (3, 84, 84), 2).dim == 32 * 5 * 5


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("convnet", (7,), {}, "this net needs images"),
        ("convnet", (3, 4, 4), {"channels": (2, 2, 2)}, "are too small for 3 convolutions"),
        ("convnet", (3, 8, 8), {"channels": ()}, r"net.channels: got \[\]; must have at least one"),
        (
            "convnet",
            (3, 8, 8),
            {"channels": (3,), "norm": "group"},
            r"net.channels: got \[3\]; must be even numbers for",
        ),
        ("resnet18", (3, 32, 32), {"norm": "group", "width": 3}, "net.width: got 3; must be even"),
        ("resnet18", (1, 8, 8), {}, "net resnet18 needs images of at least 16x16"),
        ("resnet18", (3, 32, 32), {"strides": (1,)}, "net.strides: got"),
        ("efficientnet_lite0", (1, 8, 8), {}, "net efficientnet_lite0 needs images of at least 16x16"),
    ],
)
def test_nets_say_what_they_cannot_do(name, shape, options, message):
    with pytest.raises(UserError, match=message):
        net(name, shape, **options)


def test_group_norm_nets_train_and_batch_norm_statistics_move():
    import protofed

    for norm, moved in (("batch", True), ("group", False)):
        table = {
            "run": {"rounds": 1},
            "data": {"clients": 2, "name": "digits"},
            "net": {"name": "convnet", "channels": [4], "norm": norm},
        }
        state = protofed.run(table).model(0).state_dict()
        assert any("running_mean" in name and value.abs().sum() > 0 for name, value in state.items()) == moved
