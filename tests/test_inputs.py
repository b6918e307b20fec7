"""From stored examples to a batch: normalised, augmented, and set aside for tests and validation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import protofed
from protofed.errors import UserError
from protofed.examples import Examples, augmenter, crop, flip
from test_cli import protofed as command  # noqa: F401
from test_data import wanted


def test_each_channel_has_its_own_constants():
    x = np.arange(2 * 2 * 3, dtype=np.float32).reshape(2, 2, 3)
    part = Examples.of(x, np.zeros(2), 1.0, (1.0, 4.0), (2.0, 0.5))
    got, _ = part.take(torch.arange(2))
    np.testing.assert_allclose(got[1], [(x[1, 0] - 1) / 2, (x[1, 1] - 4) / 0.5])


def test_own_statistics_by_hand():
    x = np.array([[1.0, np.nan, 5.0], [3.0, 2.0, 5.0], [np.nan, 4.0, 5.0], [5.0, 9.0, 5.0]], np.float32)
    part = Examples.of(x, np.zeros(4)).by_own_statistics()
    assert part.fill == (3.0, 4.0, 5.0)  # medians
    got, _ = part.take(torch.arange(4))
    filled = np.where(np.isnan(x), part.fill, x)
    spread = np.where(filled.std(0) > 0, filled.std(0), 1)  # a constant column stays 0
    np.testing.assert_allclose(got, (filled - filled.mean(0)) / spread, rtol=1e-5)
    assert Examples.of(x[:0], np.zeros(0)).by_own_statistics().mean == (0.0, 0.0, 0.0)


def test_a_column_that_a_client_does_not_have_is_0():
    x = np.array([[1.0, np.nan], [2.0, np.nan]], np.float32)
    got, _ = Examples.of(x, np.zeros(2)).by_own_statistics().take(torch.arange(2))
    assert got[:, 1].tolist() == [0, 0]


def test_hospitals_fill_and_scale_by_their_own_training_rows():
    wanted("heart_disease")
    result = protofed.run({"run": {"rounds": 1}, "data": {"name": "heart_disease"}, "partition": {"name": "natural"}})
    members = result.state.members
    assert members.groups == ("cleveland", "hungarian", "switzerland", "va")
    assert len({train.fill for train in members.train}) == 4
    for train, test in zip(members.train, members.test, strict=True):
        x, _ = train.take(torch.arange(len(train)))
        assert torch.isfinite(x).all()
        assert x.mean().abs() < 1e-5
        assert test.input == train.input
    assert result.summary["domains"].keys() == set(members.groups)
    assert [row["group"] for row in result.clients] == list(members.groups)


def test_normalising_by_clients_is_an_option_for_all():
    table = {"run": {"rounds": 1}, "data": {"clients": 3, "normalise": "client"}}
    members = protofed.run(table).state.members
    assert len({train.mean for train in members.train}) == 3
    assert len(members.balanced) == 3


@pytest.mark.slow
def test_own_test_sets_and_validation_sets_are_taken_from_the_training_examples():
    plain = {"run": {"rounds": 4}, "data": {"clients": 4}, "partition": {"name": "dirichlet"}}
    whole = protofed.run(plain).state.members
    result = protofed.run({**plain, "eval": {"test": "own", "validation": 0.25}})
    members = result.state.members
    for before, part in zip(whole.parts, members.parts, strict=True):
        pieces = [part.train, part.test, part.validation]
        assert sorted(np.concatenate(pieces).tolist()) == before.train.tolist()
        assert len(part.test) == pytest.approx(0.2 * len(before.train), abs=10)
        assert len(part.validation) > 0
        assert part.own
    best = result.summary["best"]
    rows = {row["round"]: row for row in result.rounds}
    assert best["validation"] == max(row["validation_head"] for row in result.rounds)
    assert rows[best["round"]]["accuracy_head"] == best["accuracy_head"]
    assert protofed.run(plain).summary["best"] is None


def test_crop_shifts_and_flip_mirrors_by_hand():
    x = torch.arange(4 * 1 * 8 * 8).reshape(4, 1, 8, 8).to(torch.uint8)
    shifted, mirrored = crop(x, torch.tensor(5)), flip(x, torch.tensor(5))
    for one, image in zip(shifted, x, strict=True):
        framed = torch.nn.functional.pad(image, (1, 1, 1, 1))
        windows = [framed[:, a : a + 8, b : b + 8] for a in range(3) for b in range(3)]
        assert any(torch.equal(one, window) for window in windows)
    for one, image in zip(mirrored, x, strict=True):
        assert torch.equal(one, image) or torch.equal(one, image.flip(-1))


def test_augmentation_depends_on_the_key_alone_and_is_fair():
    x = torch.rand(4000, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    change = augmenter(("crop", "flip"), 7)
    assert torch.equal(change(x), change(x))
    assert not torch.equal(change(x), augmenter(("crop", "flip"), 8)(x))
    flipped = (flip(x, torch.tensor(3)) != x).flatten(1).any(1).double().mean()
    assert 0.47 < flipped < 0.53
    assert augmenter((), 1) is None


def test_only_images_are_augmented():
    with pytest.raises(UserError, match=r"train.augment: got \['crop'\], but inputs of shape \(60,\) are not images"):
        protofed.run({"data": {"name": "synthetic"}, "partition": {"name": "natural"}, "train": {"augment": ["crop"]}})


def test_training_is_augmented_and_testing_is_not():
    table = {"run": {"rounds": 1}, "data": {"clients": 2}, "net": {"name": "convnet", "channels": [4]}}
    plain, changed = (protofed.run({**table, "train": {"augment": words}}) for words in ([], ["crop", "flip"]))
    assert plain.rounds[0]["loss"] != changed.rounds[0]["loss"]
    again = protofed.run({**table, "train": {"augment": ["crop", "flip"]}})
    assert again.rounds[0]["loss"] == changed.rounds[0]["loss"]


def test_what_is_missing_in_a_test_example_only_is_filled_too():
    train = Examples.of(np.array([[1.0], [3.0]], np.float32), np.zeros(2)).by_own_statistics()
    test = Examples.of(np.array([[np.nan]], np.float32), np.zeros(1)).normalised_like(train)
    assert test.take(torch.arange(1))[0].tolist() == [[0]]


def test_an_input_with_only_missing_values_is_refused():
    examples = Examples.of(np.array([[1.0, 2.0], [3.0, np.nan], [5.0, 6.0]]), np.zeros(3, int)).by_own_statistics()
    assert len(examples.checked_inputs([[np.nan, 1.0]])) == 1  # the other one is filled in
    with pytest.raises(UserError) as caught:
        examples.checked_inputs([[1.0, 2.0], [np.nan, np.nan]])
    assert str(caught.value) == "1 of the 2 inputs have only missing values (row 2). Delete them."
