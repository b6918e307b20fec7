"""A label for every pixel: batches, losses, prototypes, engines and measures count pixels as they count examples."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import protofed
from protofed.batch import Batch, nearest_rows
from protofed.core import Net, Prototypes, cross_entropy, weighted_mean
from protofed.data.partitions.base import Holding
from protofed.engines.loop import Loop
from protofed.engines.scoring import pixel_counts
from protofed.engines.stacked import Stacked
from protofed.errors import UserError
from protofed.examples import IGNORED, Examples, augmenter
from protofed.experiment.members import Members
from protofed.experiment.pixels import class_overlaps, mean_overlap
from protofed.methods import METHODS
from protofed.methods.parts.class_sums import class_sums
from toys import config, everything, figures, played_on, pool_of

CLASSES = 3
SIDE = 4


def maps_to_maps() -> tuple[nn.Module, nn.Module]:
    """Embeddings of 5 numbers at half the size of the image, and logits at that size, which the net enlarges."""
    return nn.Sequential(nn.Conv2d(1, 5, 3, 2, 1), nn.Tanh()), nn.Conv2d(5, CLASSES, 1)


def pixel_net() -> Net:
    return Net("toy of pixels", maps_to_maps, (1, SIDE, SIDE), CLASSES)


def pictures(number: int, seed: int, classes: tuple[int, ...] = (0, 1, 2)) -> Examples:
    """Masks with one class per column and some ignored pixels, and images from which they can be read."""
    draw = np.random.RandomState(seed)
    mask = np.repeat(draw.choice(classes, (number, 1, SIDE)), SIDE, 1)
    x = (mask[:, None] - 1.0 + 0.1 * draw.normal(size=(number, 1, SIDE, SIDE))).astype(np.float32)
    mask[draw.uniform(size=mask.shape) < 0.2] = IGNORED
    return Examples.of(x, draw.randint(0, 2, number), mask=mask)


SIZES = (7, 3, 1, 0, 5)


def members() -> Members:
    """Unequal clients; one has no class 2, one a single image, one none at all."""
    net = pixel_net()
    train = tuple(pictures(size, seed, (0, 1) if seed == 1 else (0, 1, 2)) for seed, size in enumerate(SIZES))
    test = tuple(pictures(2 if size else 0, 100 + seed) for seed, size in enumerate(SIZES))
    parts = tuple(Holding(np.arange(size), np.arange(size)) for size in SIZES)
    return Members("masks", ("ground", "a", "b"), (net,) * len(SIZES), train, test, (pictures(6, 7),), parts)


# Batches, losses and prototypes


def test_a_weighted_mean_refuses_weights_of_another_shape():
    with pytest.raises(ValueError, match=r"\(2, 2, 2\) need weights of that shape, got \(2,\)"):
        weighted_mean(torch.ones(2, 2, 2), torch.ones(2))


def test_an_infinite_value_without_weight_does_not_count():
    assert weighted_mean(torch.tensor([1.0, torch.inf]), torch.tensor([1.0, 0.0])).item() == 1.0


def test_a_batch_of_masks_has_a_row_per_pixel():
    batch = Batch.of(torch.zeros(2, 1, 2, 2), torch.tensor([[[0, 1], [IGNORED, 2]], [[1, 1], [0, 0]]]))
    assert batch.y.tolist() == [0, 1, 0, 2, 1, 1, 0, 0]
    assert batch.weight.tolist() == [1, 1, 0, 1, 1, 1, 1, 1]


def test_the_net_gives_rows_of_pixels():
    net = pixel_net()
    z, logits = net(net.init(torch.Generator()), torch.zeros(3, 1, SIDE, SIDE))
    assert (net.grid, net.dim) == ((2, 2), 5)
    assert z.shape == (3 * 2 * 2, 5)
    assert logits.shape == (3 * SIDE * SIDE, CLASSES)


def test_labels_are_brought_to_the_embeddings_by_the_nearest_pixel():
    net = pixel_net()
    mask = torch.arange(16).reshape(1, 4, 4) % 3
    batch = Batch.of(torch.zeros(1, 1, 4, 4), mask)
    matched = net.match(batch, torch.zeros(4, 5))
    assert matched.y.tolist() == [int(mask[0, row, column]) for row in (1, 3) for column in (1, 3)]
    assert net.match(batch, torch.zeros(16, 5)) is batch
    assert nearest_rows(torch.tensor([1, 2, 3, 4]), (2, 2), (4, 4)).reshape(4, 4).tolist() == [
        [1, 1, 2, 2],
        [1, 1, 2, 2],
        [3, 3, 4, 4],
        [3, 3, 4, 4],
    ]


def test_cross_entropy_by_hand():
    """Two images of 2x2 pixels and two classes; the logit of class 1 is log 3, so that p(1) = 3/4 and p(0) = 1/4."""
    logits = torch.tensor([0.0, np.log(3)]).repeat(8, 1)
    batch = Batch.of(torch.zeros(2, 1, 2, 2), torch.tensor([[[0, 1], [IGNORED, 1]], [[1, 1], [IGNORED, 0]]]))
    by_hand = -(4 * np.log(3 / 4) + 2 * np.log(1 / 4)) / 6
    assert cross_entropy(logits, batch).item() == pytest.approx(by_hand, rel=1e-6)


def test_prototypes_by_hand():
    """The embedding of a pixel is (value, 2 value): the mean per class is that of its labelled pixels."""

    class Twice(nn.Module):
        def forward(self, x):
            return torch.cat([x, 2 * x], 1)

    net = Net("twice", lambda: (Twice(), nn.Conv2d(2, 3, 1)), (1, 2, 2), 3)
    x = np.array([[[[1, 2], [3, 4]]], [[[5, 6], [7, 8]]]], np.float32)
    mask = np.array([[[0, 0], [2, IGNORED]], [[0, IGNORED], [IGNORED, 2]]])
    z, y = net.features(net.init(torch.Generator()), Examples.of(x, np.zeros(2), mask=mask))
    prototypes = Prototypes.of(z, y, 3)
    assert prototypes.support[:, 0].tolist() == [3, 0, 2]
    assert prototypes.mean[:, 0, 0].tolist() == pytest.approx([(1 + 2 + 5) / 3, 0, (3 + 8) / 2])
    assert prototypes.mean[:, 0, 1].tolist() == pytest.approx([2 * (1 + 2 + 5) / 3, 0, 3 + 8])
    batch = Batch.of(torch.from_numpy(x), torch.from_numpy(mask))
    sums, counts = class_sums(net.embed(net.init(torch.Generator()), batch.x), batch, 3)
    assert counts.tolist() == [3, 0, 2]
    assert sums[:, 0].tolist() == [8, 0, 11]


def test_what_an_ignored_pixel_would_be_changes_no_bit_of_loss_gradient_or_prototype():
    net, examples = pixel_net(), pictures(5, 3)
    params = net.init(torch.Generator().manual_seed(1))
    clean = Batch.of(*examples.take(torch.arange(5)))
    garbage = clean._replace(y=torch.where(clean.weight > 0, clean.y, (clean.y + 2) % CLASSES))
    assert not torch.equal(clean.y, garbage.y)
    for name in ("fedavg", "fedprox", "fedproto", "protomargin", "mpfedcl", "fpl", "ditto"):
        experiment = config(name)
        runner = played_on(Loop, replace(experiment, run=replace(experiment.run, rounds=2)), members())
        down = runner.method.broadcast(runner.server, 0)
        kept = runner.engine.state()[0]
        start = {key: value.requires_grad_() for key, value in runner.method.receive(kept, down).items()}
        results = []
        for batch in (clean, garbage):
            loss = runner.method.loss(net, start, batch, runner.method.prepare(down), kept)
            grads = torch.autograd.grad(loss.total, list(start.values()), allow_unused=True)
            results.append([loss.total, *loss.observed, *(grad for grad in grads if grad is not None)])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True)), name
    assert len(net.features(params, examples)[1]) < 5 * 2 * 2


def test_augmentation_moves_mask_and_image_together_and_ignores_new_pixels():
    draw = np.random.RandomState(0)
    mask = draw.randint(0, 200, (6, 16, 16))
    examples = Examples.of((mask[:, None] + 1).astype(np.float32), np.zeros(6), mask=mask)
    x, y = examples.take(torch.arange(6), augmenter(("crop", "flip"), 5))
    moved = torch.where(x[:, 0] == 0, IGNORED, x[:, 0] - 1)
    assert torch.equal(moved.long(), y)
    assert (y == IGNORED).any()
    assert not torch.equal(y, torch.from_numpy(mask))


# Engines and methods


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedproto", "protomargin", "local"])
@pytest.mark.parametrize(
    "kind", [Stacked, partial(Stacked, patience=1), pool_of(Loop)], ids=["stacked", "replayed", "workers"]
)
def test_every_engine_is_the_loop(method, kind):
    experiment = config(method, rounds=3, train={"epochs": 2, "optimiser": "adam", "lr": 0.01})
    spec, runner = (played_on(one, experiment, members()) for one in (Loop, kind))
    torch.testing.assert_close(everything(runner), everything(spec), rtol=1e-4, atol=1e-4)
    for row, reference in zip(runner.rounds, spec.rounds, strict=True):
        assert row["loss"] == pytest.approx(reference["loss"], rel=1e-3, abs=1e-4)
        assert row["miou_head"] == pytest.approx(reference["miou_head"], abs=0.1)  # a pixel may fall on the other side


def test_stacks_are_the_loop_with_augmented_masks():
    experiment = config("fedproto", rounds=2, train={"augment": ["crop", "flip"]})
    spec, runner = (played_on(one, experiment, members()) for one in (Loop, Stacked))
    torch.testing.assert_close(everything(runner), everything(spec), rtol=1e-4, atol=1e-4)


CANNOT = {"creff", "fednh", "fedrod"}
QUICK = {"fedtgp": {"epochs": 2}, "fedrep": {"head_epochs": 1}, "fedbabu": {"fine_tune": 1}}


@pytest.mark.parametrize("method", sorted(METHODS.keys() - CANNOT))
def test_methods_learn_pixels(method):
    experiment = config(method, rounds=2, method={"name": method, **QUICK.get(method, {})})
    runner = played_on(Loop, experiment, members())
    assert runner.rounds[-1]["loss"]["supervised" if method != "ditto" else "personal"] < 2
    summary = figures(runner)["miou"]
    assert 0 <= summary["clients"]["head"]["mean"] <= 1
    assert runner.rounds[-1]["rejected"] == {}


@pytest.mark.parametrize("method", sorted(CANNOT))
def test_methods_that_cannot_label_pixels_say_so(method, tmp_path):
    np.savez(tmp_path / "m.npz", x=np.zeros((20, 1, 4, 4), np.float32), mask=np.ones((20, 4, 4), np.uint8))
    table = {
        "data": {"name": "npz", "root": str(tmp_path / "m.npz"), "clients": 2},
        "partition": {"name": "iid"},
        "net": {"name": "unet", "channels": [2, 2]},
        "method": {"name": method},
    }
    with pytest.raises(UserError, match=f"^{method} computes logits from single embeddings, but net unet"):
        protofed.run(table)


# Measures


def brute_force_overlaps(truth, answers, classes):
    """The IoU of each class, pixel by pixel."""
    overlaps = []
    for label in range(classes):
        both = either = 0
        for t, a in zip(truth.ravel(), answers.ravel(), strict=True):
            if t == IGNORED:
                continue
            both += t == label and a == label
            either += t == label or a == label
        overlaps.append(both / either if either else None)
    return overlaps


@pytest.mark.parametrize("seed", range(20))
def test_overlap_is_a_brute_force_count_on_random_masks(seed):
    draw = np.random.RandomState(seed)
    classes, number = draw.randint(2, 6), draw.randint(1, 80)
    truth = draw.randint(0, draw.randint(1, classes + 1), (number, 3, 2))
    truth[draw.uniform(size=truth.shape) < 0.3] = IGNORED
    answers = draw.randint(0, classes, truth.shape)
    unanswered = draw.uniform(size=truth.shape) < 0.1
    scores = torch.full((truth.size, classes), -torch.inf)
    for pixel, (answer, none) in enumerate(zip(answers.ravel(), unanswered.ravel(), strict=True)):
        scores[pixel, answer] = -torch.inf if none else 1.0
    answers[unanswered] = -1
    examples = Examples.of(np.zeros((number, 1, 3, 2), np.float32), np.zeros(number), mask=truth)
    rows = iter(scores.split([len(x) * 6 for x, _ in examples.batches(512)]))  # batch by batch
    counts = pixel_counts(lambda x: {"head": next(rows)}, [examples], classes)["head"]
    expected = brute_force_overlaps(truth, answers, classes)
    assert class_overlaps(counts) == expected
    seen = [overlap for overlap in expected if overlap is not None]
    assert mean_overlap(counts) == (pytest.approx(np.mean(seen)) if seen else None)
    objects = [overlap for overlap in expected[1:] if overlap is not None]
    assert mean_overlap(counts, background=False) == (pytest.approx(np.mean(objects)) if objects else None)
    garbage = scores.clone()
    garbage[torch.from_numpy(truth.ravel() == IGNORED)] = torch.from_numpy(draw.uniform(size=classes)).float()
    rows = iter(garbage.split([len(x) * 6 for x, _ in examples.batches(512)]))
    assert pixel_counts(lambda x: {"head": next(rows)}, [examples], classes)["head"] == counts


def test_the_figures_of_a_run_are_those_of_its_pixels():
    runner = played_on(Loop, config("fedavg", rounds=2), members())
    row, summary = runner.rounds[-1], figures(runner)
    test = runner.members.balanced[0]
    net = runner.members.nets[0]
    with torch.no_grad():
        answers = net(runner.server.params, test.take(torch.arange(len(test)))[0])[1].argmax(1)
    expected = brute_force_overlaps(test.mask.numpy(), answers.numpy(), CLASSES)
    assert list(row["iou"].values()) == expected
    assert list(row["iou"]) == ["ground", "a", "b"]
    assert row["miou"] == pytest.approx(np.mean([overlap for overlap in expected if overlap is not None]))
    assert summary["miou"]["mean"] == row["miou"]
    assert summary["miou"]["per_class"] == row["iou"]
    known = test.mask.flatten() != IGNORED
    hits = (answers == test.mask.flatten())[known].double().mean().item()
    assert row["accuracy_global"] == pytest.approx(hits)
    assert summary["majority"] == pytest.approx(
        np.mean(
            [
                part.class_counts(3)[train.class_counts(3).argmax()].item() / part.num_labels
                for train, part in zip(runner.members.train, runner.members.test, strict=True)
                if len(part)
            ]
        )
    )


# Data and nets that do not fit


def test_data_and_nets_must_both_label_pixels(tmp_path):
    x, mask = np.zeros((20, 1, 4, 4), np.float32), np.ones((20, 4, 4), np.uint8)
    np.savez(tmp_path / "m.npz", x=x, mask=mask)
    table = {"data": {"name": "npz", "root": str(tmp_path / "m.npz"), "clients": 2}, "partition": {"name": "iid"}}
    with pytest.raises(UserError, match="npz has a label for every pixel, but net mlp gives one per image"):
        protofed.run(table)
    with pytest.raises(UserError, match="net unet labels every pixel, but digits has one label per input"):
        protofed.run({"data": {"clients": 4}, "net": {"name": "unet"}})
