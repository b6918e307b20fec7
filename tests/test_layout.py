"""Clients as channels in memory, and steps that are replayed: neither may change a value."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import protofed
from protofed.draws import DerivedDropout
from protofed.engines.layout import ClientsAsChannels, clients_last
from protofed.engines.replay import Replayed
from protofed.engines.stacked import Stacked
from protofed.examples import channels_last
from toys import config, everything, federation, net, played_on

CLIENTS, BATCH = 3, 2


def images(channels: int = 4, side: int = 9) -> torch.Tensor:
    return torch.randn(CLIENTS, BATCH, channels, side, side, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_lie_side_by_side(channels):
    x = images(channels)[0]
    last = channels_last(x)
    assert torch.equal(last, x)
    assert last.stride() == (channels * 81, 1, channels * 9, channels)
    assert channels_last(x[:0]).shape == (0, channels, 9, 9)
    assert channels_last(table := torch.ones(2, 3)) is table


def test_clients_lie_beside_channels():
    x = images()
    last = clients_last(x)
    assert torch.equal(last, x)
    assert last.stride() == (4, 81 * 12, 1, 9 * 12, 12)


@pytest.mark.parametrize(
    "layer",
    [
        nn.MaxPool2d(2),
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d((2, 3), ceil_mode=True),
        nn.MaxPool2d(2, dilation=2),
        nn.AvgPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Conv2d(4, 6, 3),
        nn.Conv2d(4, 6, (3, 2), bias=False),
        nn.Conv2d(4, 6, 3, padding="same"),
        nn.Conv2d(4, 6, 3, 2, 1, groups=2),
        nn.Conv2d(4, 6, 3, dilation=2, padding_mode="reflect", padding=1),
        nn.ConvTranspose2d(4, 5, 3),
        nn.GroupNorm(2, 4),
        nn.InstanceNorm2d(4),
        nn.LayerNorm([9, 9]),
        nn.PReLU(4),
        nn.Upsample(scale_factor=2),
        nn.ZeroPad2d(1),
        nn.PixelShuffle(2),
        nn.Flatten(),
    ],
    ids=str,
)
def test_every_layer_does_to_a_stack_what_it_does_to_one(layer):
    x = images().round(decimals=1)  # with ties
    names = [name for name, _ in layer.named_parameters()]
    draw = torch.Generator().manual_seed(1)
    params = [torch.rand(CLIENTS, *value.shape, generator=draw) for value in layer.parameters()]

    def loss(x, params):
        out = functional_call(layer, dict(zip(names, params, strict=True)), (x,))
        return (out.square() + out).sum()

    def one(x, params):
        with ClientsAsChannels():
            return grad(loss, (0, 1))(x, params)

    ours = vmap(one)(clients_last(x), params)
    replayed = Replayed(vmap(one), patience=0)(clients_last(x), params)
    for client in range(CLIENTS):
        leaves = [value[client].clone().requires_grad_() for value in (x, *params)]
        expected = torch.autograd.grad(loss(leaves[0], leaves[1:]), leaves)
        for a, b, c in zip((ours[0], *ours[1]), (replayed[0], *replayed[1]), expected, strict=True):
            # Sums of about 200 terms, each addition wrong by up to 6e-8: 1e-5 of the largest, also where terms cancel.
            torch.testing.assert_close(a[client], c, rtol=1e-4, atol=max(1e-4, 1e-5 * float(c.abs().max())))
            assert torch.equal(a, b)


def cubed(weight, bias, x):
    return F.conv2d(input=x, weight=weight, bias=bias, stride=[2, 1], padding=1).pow(3).sum()


def twice(weight, bias, x):
    """A gradient of a gradient."""
    return (grad(lambda weight: grad(cubed)(weight, bias, x).pow(2).sum())(weight),)


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize(("channels", "planes"), [(4, 6), (8, 16)])
@pytest.mark.parametrize("work", [grad(cubed, (0, 1)), twice])
def test_a_bias_in_one_pass_is_a_bias(clients, channels, planes, work):
    """x needs no gradient. (To the last bit on the processor that this was written on.)"""
    x, draw = clients_last(images(channels)[:clients]), torch.Generator().manual_seed(1)
    weight, bias = (torch.rand(clients, planes, *size, generator=draw) for size in ((channels, 3, 3), ()))
    plain = vmap(work)(weight, bias, x)

    def ours(weight, bias, x):
        with ClientsAsChannels():
            return work(weight, bias, x)

    for a, b in zip(vmap(ours)(weight, bias, x), plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * float(b.abs().max()))
    for a, b in zip(
        vmap(ours, (None, 0, 0))(weight[0], bias, x), vmap(work, (None, 0, 0))(weight[0], bias, x), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * float(b.abs().max()))  # one weight for all


def test_a_bias_has_no_pass_of_its_own():
    def ours(weight, bias, x):
        with ClientsAsChannels():
            return cubed(weight, bias, x)

    weight, bias = torch.ones(CLIENTS, 6, 4, 3, 3), torch.ones(CLIENTS, 6)
    graph = make_fx(vmap(ours))(weight, bias, clients_last(images())).graph
    (convolution,) = (node for node in graph.nodes if node.target is torch.ops.aten.convolution.default)
    assert convolution.args[2].meta["tensor_meta"].shape == (CLIENTS * 6,)


def test_pooling_that_tells_where_is_torchs_own():
    x = images()
    with ClientsAsChannels():
        out, where = vmap(lambda x: F.max_pool2d(x, 2, return_indices=True))(clients_last(x))
    expected = F.max_pool2d(x.flatten(0, 1), 2, return_indices=True)
    assert torch.equal(out.flatten(0, 1), expected[0])
    assert torch.equal(where.flatten(0, 1), expected[1])


@pytest.mark.slow
def test_a_replayed_run_is_the_run_to_the_last_bit():
    """Phases, sampling, dropout, short batches and clients that finish early make many kinds of steps."""
    ends = []
    for patience in (10_000, 0, 3):
        members = federation(nets=[net(dropout=0.3)] * 6)
        made: list[Stacked] = []

        def engine(*about, made=made, patience=patience):
            made.append(Stacked(*about, patience=patience))
            return made[-1]

        runner = played_on(engine, config("fedproto", rounds=4, run={"sample": 0.7}, train={"epochs": 2}), members)
        recorded = sum(len(step.recorded) for step in made[0].steps.values())
        assert (recorded > 0) == (patience < 10_000)
        ends.append(everything(runner))
    for end in ends[1:]:
        assert ends[0].keys() == end.keys()
        assert all(torch.equal(ends[0][name], end[name]) for name in end)


def test_one_tensor_in_two_places_is_two_inputs():
    traced, x, y = Replayed(lambda a, b: a - b, patience=0), torch.ones(2), torch.zeros(2)
    assert traced(x, x).tolist() == [0, 0]
    assert traced(x, y).tolist() == [1, 1]


def test_a_recorded_step_still_draws_its_random_numbers():
    """What is made from nothing becomes a constant of the recording, unless it is random."""
    noisy = Replayed(lambda a: a + torch.rand(3), patience=0)
    with torch.random.fork_rng():
        first, second = noisy(torch.zeros(3)), noisy(torch.zeros(3))
    assert len(noisy.recorded) == 1
    assert not torch.equal(first, second)


def test_types_and_strides_are_kinds_of_their_own():
    traced = Replayed(lambda a: a + torch.full((1,), 0.5, dtype=a.dtype), patience=0)
    assert traced(torch.tensor([1])).tolist() == [1]
    assert traced(torch.tensor([1.0])).tolist() == [1.5]
    flat = Replayed(lambda a: a.contiguous().view(-1), patience=0)
    x = torch.arange(6).reshape(2, 3)
    assert flat(x).tolist() == [0, 1, 2, 3, 4, 5]
    assert flat(x.T.contiguous().T).tolist() == [0, 1, 2, 3, 4, 5]


def test_pooling_without_channels_is_torchs_own():
    x = images(1)[:, :, 0]
    with ClientsAsChannels():
        out = vmap(lambda x: F.max_pool2d(x, 3, 2, 1))(x)
    assert torch.equal(out, torch.stack([F.max_pool2d(own, 3, 2, 1) for own in x]))


class Viewed(nn.Module):
    """As many people write it: `view` wants channels first in memory."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 4, 3), nn.Linear(4 * 9, 3)

    def forward(self, x):
        z = F.max_pool2d(self.conv(x), 2)
        return self.out(z.view(x.size(0), -1))


class Branching(nn.Module):
    """What it does depends on a value: it cannot be mapped."""

    def __init__(self):
        super().__init__()
        self.flat, self.out = nn.Flatten(), nn.Linear(3 * 64, 3)

    def forward(self, x):
        x = self.flat(x)
        return self.out(x if x.mean() > 1e6 else 2 * x)


@pytest.mark.parametrize(("module", "engine"), [(Viewed, "stacked"), (Branching, "loop")])
def test_own_nets_of_any_style_run_and_agree(module, engine):
    draw = np.random.RandomState(0)
    data = [(draw.normal(size=(20, 3, 8, 8)).astype(np.float32), np.arange(20) % 3) for _ in range(3)]
    made = protofed.Federation(data=data, nets=[lambda: (module(), "out")])
    results = [
        protofed.run({"run": {"rounds": 2}, "engine": {"name": name}}, federation=made) for name in ("auto", "loop")
    ]
    assert results[0].summary["engine"] == engine
    for client in range(3):
        for a, b in zip(*(result.model(client).parameters() for result in results), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_kind_of_input_is_recorded_when_it_has_come_often():
    calls = []

    def function(x, tree):
        calls.append(x.shape)
        return {"sum": x + tree["a"]}

    traced = Replayed(function, patience=2)
    for turn in range(5):
        assert torch.equal(traced(torch.ones(2), {"a": torch.ones(2) * turn})["sum"], torch.ones(2) * (1 + turn))
    assert len(calls) == 3  # twice as it is, once watched
    assert torch.equal(traced(torch.ones(3), {"a": torch.ones(3)})["sum"], torch.ones(3) * 2)
    assert len(calls) == 4
    assert len(traced.recorded) == 1


def test_masks_of_a_replayed_step_follow_the_key():
    def dropped(x, key):
        with DerivedDropout(key):
            return F.dropout(x, 0.5)

    traced = Replayed(vmap(dropped), patience=0)
    x = torch.ones(2, 64)
    first, second = (traced(x, torch.tensor(keys)) for keys in ([1, 2], [3, 2]))
    assert not torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert torch.equal(second, vmap(dropped)(x, torch.tensor([3, 2])))


def steps_of(traced):
    """The names of a recorded function's operations."""
    (recorded,) = traced.recorded.values()
    return [
        getattr(node.target, "__name__", "") for node in recorded.run.__self__.graph.nodes if node.op == "call_function"
    ]


def test_a_view_of_a_view_is_one_look_wherever_the_tensor_begins():
    def turned(a):
        return a.transpose(0, 1).unsqueeze(0).expand(2, 4, 3) * 2, a.transpose(0, 1).unsqueeze(0).expand(2, 4, 3) + 1

    traced, x = Replayed(turned, patience=0), torch.arange(24.0).reshape(2, 3, 4)
    for one in (x[0], x[1]):  # the second begins in the middle of its memory
        assert all(torch.equal(a, b) for a, b in zip(traced(one), turned(one), strict=True))
    assert steps_of(traced) == ["as_strided", "mul", "add"]


def test_a_view_that_begins_elsewhere_is_made_anew():
    traced, x = Replayed(lambda a: a[1].unsqueeze(0) * 2, patience=0), torch.arange(12.0).reshape(4, 3)
    assert traced(x[:2]).tolist() == [[6, 8, 10]]
    assert traced(x[2:]).tolist() == [[18, 20, 22]]


def test_a_view_that_says_where_it_begins_begins_there():
    traced, x = Replayed(lambda a: a.as_strided((2,), (1,), 0) * 2, patience=0), torch.arange(6.0).reshape(2, 3)
    assert [traced(one).tolist() for one in x] == [[0, 2], [0, 2]]


def test_a_conjugate_is_no_mere_view():
    """It comes in with every product of complex numbers, as in a filter that is learned by its frequencies."""

    def filtered(x, a, b):
        return torch.fft.ifft(torch.fft.fft(x) * torch.complex(a, b)).real.pow(3).sum()

    x, a, b = torch.rand(3, 4, 8, generator=torch.Generator().manual_seed(0))
    slopes = vmap(grad(filtered, (1, 2)))
    for ours, expected in zip(Replayed(slopes, patience=0)(x, a, b), slopes(x, a, b), strict=True):
        assert torch.equal(ours, expected)


def test_a_part_that_has_a_name_for_profilers_is_recorded():
    def named(a):
        with torch.profiler.record_function("part"):
            return a + 1

    traced = Replayed(named, patience=0)
    assert [traced(torch.ones(1) * turn).item() for turn in (1, 2)] == [2, 3]


def test_constants_are_made_once():
    traced = Replayed(lambda a: a + torch.arange(3), patience=0)
    assert [traced(torch.ones(3) * turn).tolist() for turn in (1, 2)] == [[1, 2, 3], [2, 3, 4]]
    assert steps_of(traced) == ["add"]


def test_a_step_that_writes_in_place_begins_anew_each_time():
    traced = Replayed(lambda a: torch.zeros(2).add_(a).unsqueeze(0), patience=0)
    assert [traced(torch.ones(2)).tolist() for _ in range(3)] == [[[1, 1]]] * 3
