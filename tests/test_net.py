from __future__ import annotations

import pytest
import torch

from protofed.draws import generator
from protofed.errors import UserError
from protofed.net import Net
from protofed.nets import NETS, make_net
from toys import net


def test_net_gives_embedding_and_logits():
    toy = net()
    z, logits = toy(toy.init(generator(0)), torch.ones(7, 4))
    assert z.shape == (7, 5)
    assert logits.shape == (7, 3)


def test_init_is_a_function_of_the_generator_alone():
    toy = net()
    first, again, other = (toy.init(generator(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_the_module_inside_owns_no_state():
    toy = net()
    ones = {name: torch.ones(shape) for name, shape in toy.shapes.items()}
    assert toy(ones, torch.ones(1, 4))[1].unique().numel() == 1


def test_parameters_of_another_net_are_refused():
    toy = net()
    with pytest.raises(UserError, match=r"not toy's: body.0.bias has shape \(9,\), the net needs \(6,\)"):
        toy.check(net(hidden=9).init(generator(0)))
    with pytest.raises(UserError, match="has shape none"):
        toy.check({})


def test_what_a_method_adds_is_not_checked():
    toy = net()
    toy.check(toy.init(generator(0)) | {"method.scale": torch.ones(())})


def test_buffers_are_params_but_never_train():
    toy = net(norm=True)
    assert "body.1.running_mean" in toy.shapes
    params = toy.init(generator(0))
    moving = {name for name in toy.shapes if toy.trains(name, params[name])}
    assert moving == {name for name in toy.shapes if "running" not in name and "tracked" not in name}
    assert toy.trains("method.scale", torch.ones(()))
    assert not toy.trains("method.seen", torch.ones((), dtype=torch.long))
    assert toy.trains("method.body.1.weight", params["body.1.weight"])
    assert not toy.trains("method.body.1.running_mean", params["body.1.running_mean"])


def test_frozen_layers_do_not_train():
    def build():
        body = torch.nn.Linear(4, 5).requires_grad_(False)
        return body, torch.nn.Linear(5, 3)

    assert Net("frozen", build, (4,), 3).trainable == {"head.weight", "head.bias"}


def test_layers_that_draw_globally_are_refused():
    def build():
        return torch.nn.Linear(4, 5), torch.nn.Linear(int(torch.normal(5.0, torch.zeros(1)).item()), 3)

    state = torch.get_rng_state()
    with pytest.raises(UserError, match="net odd drew from torch's global generator"):
        Net("odd", build, (4,), 3)
    torch.set_rng_state(state)


def test_fedproto_cnn_has_the_published_size():
    cnn = make_net("cnn", NETS["cnn"](), (1, 28, 28), 10)
    sizes = {name: torch.Size(shape).numel() for name, shape in cnn.shapes.items()}
    assert sum(sizes.values()) == 21_840
    assert (
        sum(size for name, size in sizes.items() if name.startswith("body.conv")) == 5_280
    )  # FedPer's share in Table 1
    assert cnn.dim == 50
    assert cnn.name == "cnn"


def test_cnn_by_channels_keeps_its_embedding_size():
    mixed = [make_net("cnn", NETS["cnn"](channels=channels), (1, 28, 28), 10) for channels in (18, 22)]
    assert [toy.name for toy in mixed] == ["cnn(channels=18)", "cnn(channels=22)"]
    assert {toy.dim for toy in mixed} == {50}


def test_nets_side_by_side_are_told_apart_even_at_a_default():
    designs = [NETS["cnn"](channels=channels) for channels in (18, 20)]
    assert [make_net("cnn", design, (1, 28, 28), 10, designs).name for design in designs] == [
        "cnn(channels=18)",
        "cnn(channels=20)",
    ]


def test_cnn_on_small_images_says_what_to_use():
    with pytest.raises(UserError, match=r"got inputs of shape \(1, 8, 8\). Use net mlp"):
        make_net("cnn", NETS["cnn"](), (1, 8, 8), 10)
