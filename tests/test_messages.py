from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load
from torch import nn

import protofed
from protofed.core import Nothing, Params, Prototypes, Upload, Weights
from protofed.errors import UserError
from protofed.messages import (
    Size,
    average,
    flatten,
    message_size,
    share_equal_messages,
    to_bytes,
    unflatten,
    with_sorted_names,
)
from protofed.nets.own import OwnNet
from protofed.trust.guard import sift
from toys import bank


class Inner(NamedTuple):
    params: Params
    scale: torch.Tensor


class Outer(NamedTuple):
    inner: Inner
    prototypes: Prototypes
    none: Nothing


MESSAGE = Outer(
    Inner({"body.w": torch.ones(2, 3), "head.b": torch.zeros(4)}, torch.tensor(2.0)), bank({1: [5.0, 6.0]}), ()
)


def test_flat_names_are_joined_by_slashes():
    assert list(flatten(MESSAGE)) == [
        "inner/params/body.w",
        "inner/params/head.b",
        "inner/scale",
        "prototypes/mean",
        "prototypes/support",
        "prototypes/rows",
        "prototypes/shape",
    ]


def test_messages_come_back_by_their_type():
    back = unflatten(Outer, flatten(MESSAGE))
    assert isinstance(back.inner, Inner)
    assert back.none == ()
    torch.testing.assert_close(flatten(back), flatten(MESSAGE), rtol=0, atol=0)


def test_an_average_with_weights_that_are_not_finite_is_refused():
    with pytest.raises(UserError, match=r"The weights of an average must be finite; got \[1\.0, nan\]"):
        average([{"w": torch.ones(1)}] * 2, [1.0, float("nan")])


def test_names_have_the_same_order_each_time_that_bytes_are_read():
    """safetensors reads them in an order that changes; steps that were recorded for one order would not be used again."""
    params = {f"layer{number}.weight": torch.ones(number) for number in (3, 1, 4, 2, 6, 5)}
    content = to_bytes(Weights(params))
    assert {tuple(unflatten(Weights, load(content)).params) for _ in range(20)} == {tuple(sorted(params))}
    assert list(with_sorted_names(Weights(params)).params) == sorted(params)
    assert with_sorted_names(MESSAGE.prototypes) is MESSAGE.prototypes


@pytest.mark.parametrize("message", [bank({1: [5.0, 6.0]}), {"a": torch.ones(2)}, ()])
def test_bare_messages_come_back(message):
    kind = Prototypes if isinstance(message, Prototypes) else Params if isinstance(message, dict) else Nothing
    torch.testing.assert_close(flatten(unflatten(kind, flatten(message))), flatten(message), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("kind", "strange"), [(Nothing, "inner"), (Inner, "inner"), (Prototypes, "inner"), (torch.Tensor, "inner")]
)
def test_what_does_not_fit_the_type_is_not_dropped(kind, strange):
    with pytest.raises(ValueError, match=f"has no '{strange}'"):
        unflatten(kind, flatten(MESSAGE))


@pytest.mark.parametrize(
    "change",
    [
        {"rows": torch.tensor([7])},
        {"rows": torch.tensor([1, 1])},
        {"shape": torch.tensor([3, 1])},
        {"shape": torch.tensor([3, -1, 2])},
    ],
)
def test_prototypes_that_do_not_fit_their_shape_are_refused(change):
    with pytest.raises(ValueError, match="prototypes"):
        Prototypes.unpack({**bank({1: [5.0, 6.0]}).pack(), **change})


def test_size_counts_numbers_and_bytes():
    assert message_size(MESSAGE) == Size(params=6 + 4 + 1 + 2, counts=1, bytes=4 * (11 + 2 + 1 + 1 + 3))
    assert message_size(()) == Size()


def test_what_is_not_a_message_is_refused():
    with pytest.raises(TypeError, match="got str at 'a'"):
        flatten({"a": "text"})


def upload(client: int, message: object, examples: int = 1) -> Upload:
    return Upload(client, examples, 1, 1.0, message)


def test_guard_rejects_nan_negative_support_and_odd_shapes():
    good = bank({0: [1.0, 2.0], 2: [0.0, 0.0]})
    nan, negative = bank({0: [1.0, float("nan")]}), bank({0: [1.0, 2.0]}, {0: -3})
    sent = [good, nan, negative, bank({0: [1.0, 2.0, 3.0]}), bank({1: [1.0, 1.0]})]
    accepted, rejected = sift([upload(client, {"p": message}) for client, message in enumerate(sent)])
    assert [taken.client for taken in accepted] == [0, 4]
    assert rejected == {
        1: "p/mean is not finite",
        2: "p has a negative support",
        3: "p does not have the names or shapes that the other clients sent",
    }


def test_guard_is_not_led_by_the_first_upload():
    messages = [{"w": torch.ones(9)}, {"w": torch.ones(2)}, {"w": torch.ones(2)}]
    accepted, rejected = sift([upload(client, message) for client, message in enumerate(messages)])
    assert [taken.client for taken in accepted] == [1, 2]
    assert list(rejected) == [0]


def test_guard_rejects_prototypes_with_another_number_of_modes():
    one, two = (Prototypes(torch.ones(3, modes, 2), torch.ones(3, modes)) for modes in (1, 2))
    accepted, rejected = sift([upload(client, {"p": message}) for client, message in enumerate([two, one, one])])
    assert [taken.client for taken in accepted] == [1, 2]
    assert rejected == {0: "p does not have the names or shapes that the other clients sent"}


class NamedLikePrototypes(nn.Module):
    """A body with parameters that have the names of the parts of packed prototypes."""

    def __init__(self) -> None:
        super().__init__()
        self.support = nn.Parameter(torch.tensor([-1.0, 2.0, 3.0, 4.0]))
        self.rows = nn.Parameter(torch.ones(4))
        self.shape = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return x * self.support * self.rows + self.shape


def test_parameters_are_not_taken_for_prototypes_because_of_their_names():
    net = OwnNet.net(lambda: (NamedLikePrototypes(), nn.Linear(4, 3)), "nets[0]", (4,), 3)
    params = net.init(torch.Generator())
    bare = {name.removeprefix("body."): value for name, value in params.items()}
    assert {"support", "rows", "shape"} <= bare.keys()
    for message in (Weights(params), Weights(bare), bare):
        accepted, rejected = sift([upload(client, message) for client in (0, 1)])
        assert len(accepted) == 2
        assert rejected == {}
        assert message_size(message) == Size(params=3 * 4 + 4 * 3 + 3, bytes=4 * 27)


def test_a_run_accepts_and_counts_parameters_named_like_prototypes():
    draw = np.random.RandomState(0)
    data = [(draw.normal(size=(12, 4)), np.arange(12) % 3) for _ in range(2)]
    federation = protofed.Federation(data, nets=[lambda: (NamedLikePrototypes(), nn.Linear(4, 3))])
    result = protofed.run({"run": {"rounds": 1}, "method": {"name": "fedavg"}}, federation=federation)
    assert result.summary["rejected"] == 0
    assert result.summary["cost"]["up_params"] == 2 * 27
    assert result.rounds[0]["up_counts"] == 0


def test_guard_of_nothing():
    assert sift([]) == ([], {})
    assert sift([upload(0, (), examples=-1)])[1] == {0: "num_examples is -1"}


def test_messages_of_the_same_tensors_become_one_object():
    params, others = {"w": torch.ones(2)}, {"w": torch.ones(2)}
    shared = share_equal_messages({0: Weights(params), 1: Weights(params), 2: Weights(others)})
    assert shared[0] is shared[1]
    assert shared[2] is not shared[0]  # equal numbers in other tensors are another message
    assert shared[2].params is others
