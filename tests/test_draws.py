from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from protofed.draws import DerivedDropout, DrawFrom, derive, generator, hashed_integers, no_global_draws, random_state
from protofed.errors import UserError


def test_derived_numbers_do_not_change():
    # Golden: a change here changes every result there is.
    assert derive(0, "batches", 3, 7) == 6949077205272176587
    assert random_state(0, "partition").randint(0, 1000, 4).tolist() == [266, 422, 845, 705]


def test_layers_made_inside_draw_from_the_generator():
    def made() -> list[torch.Tensor]:
        with DrawFrom(generator("layers")):
            layers = nn.Sequential(nn.Linear(3, 4), nn.Conv2d(1, 2, 3), nn.Embedding(3, 2), nn.GRU(2, 2))
        return list(layers.parameters())

    assert all(torch.equal(a, b) for a, b in zip(made(), made(), strict=True))


def test_hashes_do_not_change():
    """The formula in 64-bit integers, which are slower: every dropout mask and augmentation depends on it."""

    def mixed(word: int) -> int:
        word = ((word ^ (word >> 16)) * 0x7FEB352D) % 2**32
        word = ((word ^ (word >> 15)) * 0x846CA68B) % 2**32
        return word ^ (word >> 16)

    for key in (0, 1, 2**31, 2**32 - 1, 2**63 - 1, *(derive("hash", number) for number in range(20))):
        for call in (1, 2, 50):
            word = mixed((key + call) % 2**32)
            expected = [mixed((mixed(position ^ word) + (key >> 32)) % 2**32) for position in range(9)]
            assert hashed_integers(torch.tensor(key), call, 9).tolist() == expected
            for p in (0.001, 0.3, 0.5, 0.999):
                dropout = DerivedDropout(torch.tensor(key))
                dropout.calls = call - 1
                kept = dropout.drop("dropout", torch.ones(9), p) != 0
                assert kept.tolist() == [number >= int(p * 2**32) for number in expected]


def mask(key: int, shape: tuple[int, ...] = (8, 50), p: float = 0.5) -> torch.Tensor:
    with DerivedDropout(torch.tensor(key)):
        return F.dropout(torch.ones(shape), p)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_right_share_and_the_mean(p):
    many = torch.stack([mask(derive("share", key), p=p) for key in range(300)])
    assert many.ne(0).float().mean().item() == pytest.approx(1 - p, abs=0.005)
    assert many.mean().item() == pytest.approx(1, abs=0.03)
    assert many.ne(0).float().mean(0).std().item() == pytest.approx(
        (p * (1 - p) / 300) ** 0.5, rel=0.15
    )  # as of fair coins


def test_no_two_positions_of_the_masks_are_correlated():
    keys = torch.tensor([derive("pairs", number) for number in range(4000)])
    first, second = (torch.vmap(lambda key, call=call: hashed_integers(key, call, 150))(keys) for call in (1, 2))
    signs = torch.cat([first, second], 1).ge(2**31).float() * 2 - 1  # two calls of dropout under each key
    pairs = (signs.T @ signs / 4000)[~torch.eye(300, dtype=torch.bool)] * 4000**0.5
    assert pairs.std().item() == pytest.approx(1, abs=0.03)  # as of fair coins
    assert pairs.abs().max() < 6


def test_masks_differ_by_key_and_by_call_but_repeat():
    assert torch.equal(mask(1), mask(1))
    assert not torch.equal(mask(1), mask(2))
    with DerivedDropout(torch.tensor(1)):
        first, second = F.dropout(torch.ones(100)), F.dropout(torch.ones(100))
    assert not torch.equal(first, second)


def test_dropout2d_drops_whole_channels():
    with DerivedDropout(torch.tensor(5)):
        dropped = nn.Dropout2d(0.5)(torch.ones(16, 8, 3, 3))
    assert set(dropped.amax((2, 3)).unique().tolist()) == {0.0, 2.0}
    assert torch.equal(dropped.amax((2, 3)), dropped.amin((2, 3)))


def test_dropout_in_evaluation_does_nothing():
    with DerivedDropout(torch.tensor(5)):
        assert torch.equal(F.dropout(torch.ones(9), 0.5, training=False), torch.ones(9))


def test_masks_map_over_clients():
    def f(key: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        with DerivedDropout(key):
            return F.dropout2d(F.dropout(x, 0.5), 0.5)

    keys, x = torch.tensor([derive(1), derive(2)]), torch.ones(2, 4, 5, 3, 3)
    torch.testing.assert_close(
        torch.vmap(f)(keys, x), torch.stack([f(keys[0], x[0]), f(keys[1], x[1])]), rtol=0, atol=0
    )


def test_a_short_batch_has_the_same_mask_as_the_start_of_a_full_one():
    assert torch.equal(mask(3, (5, 50)), mask(3, (8, 50))[:5])


def test_other_random_layers_are_refused():
    state = torch.get_rng_state()
    with pytest.raises(UserError, match="net x drew from torch's global generator"), no_global_draws("net x"):
        nn.AlphaDropout()(torch.ones(3))
    torch.set_rng_state(state)


@pytest.mark.parametrize(
    ("package", "draw"), [("numpy", np.random.rand), ("Python", random.random)], ids=["numpy", "python"]
)
def test_layers_that_draw_from_other_packages_are_refused(package, draw):
    states = np.random.get_state(), random.getstate()
    with pytest.raises(UserError, match=f"net x drew from {package}'s global generator"), no_global_draws("net x"):
        draw()
    np.random.set_state(states[0])
    random.setstate(states[1])


def test_numbers_of_other_types_derive_the_same():
    assert derive(0, "a", np.int64(3)) == derive(0, "a", 3)
    with pytest.raises(TypeError):
        derive(0.5)
