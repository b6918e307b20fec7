from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from protofed.core import Nothing, Params, Prototypes, Upload
from protofed.messages import Size, flatten, message_size, unflatten
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
        2: "p/support is negative",
        3: "p does not have the shape that the other clients sent",
    }


def test_guard_is_not_led_by_the_first_upload():
    messages = [{"w": torch.ones(9)}, {"w": torch.ones(2)}, {"w": torch.ones(2)}]
    accepted, rejected = sift([upload(client, message) for client, message in enumerate(messages)])
    assert [taken.client for taken in accepted] == [1, 2]
    assert list(rejected) == [0]


def test_guard_of_nothing():
    assert sift([]) == ([], {})
    assert sift([upload(0, (), examples=-1)])[1] == {0: "num_examples is -1"}
