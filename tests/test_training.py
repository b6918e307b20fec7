"""A client's round: schedule, optimiser, phases."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from protofed.core import Batch, Loss, Phase, Site, cross_entropy
from protofed.draws import DerivedDropout, generator
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.methods.local import Local
from protofed.net import Net
from protofed.training import Optimiser, Taken, TrainSection, batch_schedule, take_part, train_client
from toys import examples, federation, net


def site(client: int = 0, round: int = 0, **options: object) -> Site:
    return Site(net(**options), seed=0, round=round, client=client, clients=3)


def sizes(count: int, **options: object) -> list[int]:
    ((epoch,),) = batch_schedule(site(), count, [Phase(1)], TrainSection(**options))
    return [len(batch) for batch in epoch]


def test_an_epoch_is_a_permutation():
    (epochs,) = batch_schedule(site(), 10, [Phase(2)], TrainSection(batch=4))
    assert all(sorted(torch.cat(batches).tolist()) == list(range(10)) for batches in epochs)
    assert not torch.equal(torch.cat(epochs[0]), torch.cat(epochs[1]))


def test_schedule_depends_on_round_and_client_only():
    def order(**where: int) -> list[int]:
        return torch.cat(batch_schedule(site(**where), 10, [Phase(1)], TrainSection())[0][0]).tolist()

    assert order() == order()
    assert order() != order(client=1)
    assert order() != order(round=1)


def test_short_batches():
    assert sizes(10, batch=4) == [4, 4, 2]
    assert sizes(10, batch=4, drop_last=True) == [4, 4]
    assert sizes(8, batch=4, drop_last=True) == [4, 4]
    assert sizes(3, batch=4, drop_last=True) == [3]  # an only batch is never dropped
    assert sizes(0, batch=4) == []


@pytest.mark.parametrize(
    ("options", "reference"),
    [
        ({"momentum": 0.0}, lambda p: torch.optim.SGD(p, 0.1)),
        ({"momentum": 0.9, "weight_decay": 0.01}, lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01)),
        ({"optimiser": "adam"}, lambda p: torch.optim.Adam(p, 0.1)),
        ({"optimiser": "adam", "weight_decay": 0.01}, lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.01)),
        ({"optimiser": "adamw"}, lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.0)),
        ({"optimiser": "adamw", "weight_decay": 0.5}, lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.5)),
    ],
)
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_optimisers_equal_torch(options, reference, clip):
    """In double precision, except for Adam's count of steps, which is a float32.

    Therefore Adam's 1 - 0.999^t is computed in single precision, in which 0.999 is 1.3e-8 too large: an error of 1.3e-5
    of the result in every step. `pow` may round by one ulp more, 6e-8, depending on the processor: 6e-5 / t of the
    result. The square root halves both, and a step has a length of about 0.1. In five steps: 3e-6 + 7e-6.
    """
    ours = {"a": torch.tensor([1.0, -2.0]).double(), "b": torch.tensor([[3.0]]).double()}
    tolerance = 1.5e-5 if "optimiser" in options else 1e-12
    theirs = [value.clone().requires_grad_() for value in ours.values()]
    optimiser, peer = Optimiser(TrainSection(clip=clip, **options), 0.1), reference(theirs)
    state = optimiser.start(ours)
    for step in range(5):
        grads = {name: value.cos() * (step + 1) for name, value in ours.items()}
        for tensor, grad in zip(theirs, grads.values(), strict=True):
            tensor.grad = grad.clone()
        if clip:
            torch.nn.utils.clip_grad_norm_(theirs, clip)
        peer.step()
        ours, state = optimiser.step(ours, grads, state)
        torch.testing.assert_close(list(ours.values()), [one.detach() for one in theirs], rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.0},
        {"weight_decay": 0.1, "clip": 0.5},
        {"optimiser": "adam"},
        {"optimiser": "adamw", "weight_decay": 0.1},
    ],
    ids=str,
)
def test_a_step_in_place_has_the_bits_of_a_step(options):
    """Small tensors together, a large one in parts, and one with its values in another order."""
    draw = generator("in place")
    shapes = {"small": (3,), "large": (260, 257), "other order": (300, 250)}
    params = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    params["other order"] = params["other order"].T
    changed, optimiser = (
        {name: value.clone() for name, value in params.items()},
        Optimiser(TrainSection(**options), 0.1),
    )
    states = [optimiser.start(params), optimiser.start(changed)]
    for step in range(3):
        grads = {name: value.cos() * (step + 1) for name, value in params.items()}
        params, states[0] = optimiser.step(params, grads, states[0])
        states[1] = optimiser.update(changed, grads, states[1])
        for name, value in params.items():
            assert torch.equal(changed[name], value), name


@pytest.mark.parametrize("shape", [(4,), (1, 6, 5), (3, 6, 5)])
def test_examples_that_are_normalised_once_give_the_same_batches(shape):
    x = torch.rand(7, *shape, generator=generator("x"))
    data = Examples(x, torch.arange(7) % 3, torch.tensor([6, 1, 0, 3]), 2.0, (0.5,) * shape[0], (0.3,) * shape[0])
    taken, positions = Taken(data, ()), torch.tensor([2, 0, 3])
    assert taken.examples is not None
    batch, expected = taken.batch(positions, ()), Batch.of(*data.take(positions))
    for one, other in zip(batch, expected, strict=True):
        assert torch.equal(one, other)
    assert batch.x.stride() == expected.x.stride()  # recorded steps depend on it


def test_large_and_augmented_examples_are_normalised_batch_by_batch(monkeypatch):
    data = examples([0, 1, 2])
    assert Taken(data, ("flip",)).examples is None
    monkeypatch.setattr("protofed.training._MOST_NORMALISED", 11)
    assert Taken(data, ()).examples is None


@pytest.mark.parametrize(
    ("separately", "expected"),
    [
        ((), [3 * 3.5 / 13, 4 * 3.5 / 13, 3.5 * 12 / 13]),  # a norm of 13
        (("head.",), [2.1, 2.8, 3.5]),  # norms of 5 and 12
        (("not head.",), [2.1, 2.8, 3.5]),
        (("body.a", "body.b"), [3.0, 3.5, 3.5]),  # norms of 3, 4 and 12; the first is short enough
        (("method.",), [3 * 3.5 / 13, 4 * 3.5 / 13, 3.5 * 12 / 13]),  # no such part in this phase
    ],
)
def test_parts_are_clipped_separately(separately, expected):
    grads = dict(zip(("body.a", "body.b", "head.c"), torch.tensor([3.0, 4.0, 12.0]), strict=True))
    zeros = {name: torch.zeros(()) for name in grads}
    optimiser = Optimiser(TrainSection(clip=3.5, momentum=0.0), 1.0, separately)
    moved, state = optimiser.step(zeros, grads, optimiser.start(zeros))
    assert list(moved) == list(state["velocity"]) == list(grads)  # the order of names is part of a recorded step
    # the norm is increased by 1e-6, and four operations in single precision round by 6e-8 each
    assert [-float(value) for value in moved.values()] == pytest.approx(expected, rel=1e-6)


def test_learning_rate_decays_by_round():
    assert [TrainSection(lr=1.0, decay=0.5).rate(round) for round in range(3)] == [1, 0.5, 0.25]


def polynomial(**options: object) -> TrainSection:
    return TrainSection(schedule="polynomial", **options)


def test_learning_rate_decays_by_a_polynomial_and_keeps_its_last_value():
    rates = [polynomial(lr=2.0, decay_rounds=4, decay_power=2.0).rate(round) for round in range(6)]
    assert rates == pytest.approx([2, 2 * 9 / 16, 2 * 4 / 16, 2 / 16, 2 / 16, 2 / 16])
    assert polynomial(lr=1.0, decay_rounds=440).rate(220) == pytest.approx(0.5**0.9)


def test_learning_rate_falls_along_a_cosine():
    cosine = TrainSection(lr=2.0, schedule="cosine", decay_rounds=3)
    assert [cosine.rate(round) for round in range(5)] == pytest.approx([2, 1.5, 0.5, 0.5, 0.5])


def test_a_constant_learning_rate():
    assert [TrainSection(lr=0.3, schedule="constant").rate(round) for round in range(3)] == [0.3] * 3
    assert not TrainSection(lr=0.3, schedule="constant").rate_changes


def test_warm_up_rises_linearly_and_then_the_schedule_starts():
    constant = TrainSection(lr=1.0, schedule="constant", warmup=4)
    assert [constant.rate(round) for round in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    exponential = TrainSection(lr=1.0, decay=0.5, warmup=2)
    assert [exponential.rate(round) for round in range(5)] == [0.5, 1, 1, 0.5, 0.25]
    falling = polynomial(lr=1.0, decay_rounds=6, decay_power=1.0, warmup=2)
    assert [falling.rate(round) for round in range(8)] == [0.5, 1, 1, 0.75, 0.5, 0.25, 0.25, 0.25]


def test_learning_rate_by_step_counts_the_fraction_of_the_clients_steps():
    training = polynomial(lr=1.0, decay_rounds=2, decay_power=1.0, schedule_by="step")
    of_four = [training.rate(round, step, 4) for round in range(3) for step in range(4)]
    assert of_four == [1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, *[0.125] * 4]
    assert [training.rate(1, step, 2) for step in range(2)] == [0.5, 0.25]  # half of the steps: the same progress
    assert training.mean_rate(0, 4) == (1 + 0.875 + 0.75 + 0.625) / 4
    assert training.mean_rate(1, 0) == 0.5  # a client without a step
    warm = TrainSection(lr=1.0, decay=0.25, schedule_by="step", warmup=0.5)
    assert [warm.rate(0, step, 4) for step in range(4)] == pytest.approx([0.5, 1, 1, 0.25**0.25])
    assert polynomial(lr=1.0, decay_rounds=2).rate(0, 3, 4) == 1  # by round


def test_hooks_see_the_mean_learning_rate_of_the_steps():
    """Twelve examples, two epochs of batches of 8: four steps, in the second of two rounds."""
    client = federation([[0, 1, 2] * 4]).client(0, 1, 0)
    options = {"batch": 8, "epochs": 2, "lr": 0.8, "decay_rounds": 2, "decay_power": 1.0}
    trained = [
        take_part(Local(), client, Local().join(client), (), polynomial(schedule_by=unit, **options))[0]
        for unit in ("round", "step")
    ]
    assert [(one.steps, one.lr) for one in trained] == [(4, 0.4), (4, pytest.approx((0.4 + 0.3 + 0.2 + 0.1) / 4))]


def test_every_step_of_all_phases_has_its_learning_rate():
    """Plain SGD with a constant gradient: parameters move by the sum of the rates. Six steps in two phases."""

    class Slope(Local):
        def loss(self, net, params, batch, down, kept):
            total = sum((value.sum() for value in params.values()), torch.zeros(()))
            return Loss(slope=total)

    training = TrainSection(batch=4, lr=0.1, momentum=0.0, schedule="cosine", decay_rounds=2, schedule_by="step")
    where = site(round=1)
    start = where.net.init(generator("start"))
    phases = [Phase(1), Phase(1, ("head",))]
    outcome = train_client(Slope(), where, examples([0, 1, 2] * 4), start, (), (), phases, training)
    rates = [0.05 * (1 + math.cos(math.pi * (1 + step / 6) / 2)) for step in range(6)]
    for name, value in outcome.params.items():
        way = sum(rates if name.startswith("head") else rates[:3])
        # six subtractions in single precision of numbers of at most about 1
        torch.testing.assert_close(start[name] - value, torch.full_like(value, way), rtol=0, atol=6 * 6e-8)


def one(phases: list[Phase], data=None, method=None, **options: object):
    where = site(**options)
    start = where.net.init(generator("start"))
    return start, train_client(
        method or Local(),
        where,
        examples([0, 1, 2] * 4) if data is None else data,
        start,
        (),
        (),
        phases,
        TrainSection(batch=4, lr=0.1),
    )


def test_a_step_by_hand():
    where, data, how = site(), examples([0, 1, 2]), TrainSection(batch=3, lr=0.1, momentum=0.0)
    start = where.net.init(generator("start"))
    leaves = {name: value.clone().requires_grad_() for name, value in start.items()}
    x, y = data.take(torch.arange(3))
    loss = cross_entropy(where.net(leaves, x)[1], Batch(x, y, torch.ones(3)))
    grads = torch.autograd.grad(loss, list(leaves.values()))
    expected = {name: value.detach() - 0.1 * grad for (name, value), grad in zip(leaves.items(), grads, strict=True)}
    outcome = train_client(Local(), where, data, start, (), (), [Phase(1)], how)
    torch.testing.assert_close(outcome.params, expected)
    assert outcome.steps == 1
    assert outcome.terms["supervised"].item() / outcome.examples_seen == pytest.approx(loss.item(), rel=1e-5)


def test_phases_move_only_their_parameters():
    start, outcome = one([Phase(1, ("head.",))])
    moved = {name for name in start if not torch.equal(start[name], outcome.params[name])}
    assert moved == {"head.weight", "head.bias"}
    start, outcome = one([Phase(1, ("head.",)), Phase(1, ("body.",))])
    assert not torch.equal(start["body.0.weight"], outcome.params["body.0.weight"])
    assert outcome.steps == 6


def test_training_leaves_its_start_untouched_even_with_batch_norm():
    start, outcome = one([Phase(2)], norm=True)
    assert start["body.1.num_batches_tracked"].item() == 0
    assert outcome.params["body.1.num_batches_tracked"].item() == 6
    assert not torch.equal(start["body.1.running_mean"], outcome.params["body.1.running_mean"])


def test_empty_client_trains_nothing():
    start, outcome = one([Phase(3)], data=examples([]))
    assert outcome.steps == 0
    assert all(torch.equal(start[name], outcome.params[name]) for name in start)


def test_observed_is_summed_over_the_last_epoch_only():
    class Counting(Local):
        def loss(self, net, params, batch, down, kept):
            plain = super().loss(net, params, batch, down, kept)
            return Loss((batch.weight.sum(),), **plain.terms)

    _, outcome = one([Phase(1), Phase(3)], method=Counting())
    assert [value.item() for value in outcome.observed] == [12]


def test_observed_is_that_of_the_last_epoch_that_ran():
    class Counting(Local):
        def loss(self, net, params, batch, down, kept):
            return Loss((batch.weight.sum(),), **super().loss(net, params, batch, down, kept).terms)

    _, outcome = one([Phase(2), Phase(0)], method=Counting())
    assert [value.item() for value in outcome.observed] == [12]


def test_batch_norm_leaves_out_a_batch_of_one():
    ((epoch,),) = batch_schedule(site(norm=True), 9, [Phase(1)], TrainSection(batch=4))
    assert [len(batch) for batch in epoch] == [4, 4]
    _, outcome = one([Phase(2)], data=examples([1]), norm=True)
    assert outcome.steps == 0


def test_phase_that_trains_nothing_says_so():
    with pytest.raises(UserError, match=r"A phase trains \('hed.',\), but toy has only body.0.bias, "):
        one([Phase(1, ("hed.",))])


def test_every_phase_has_a_new_optimiser():
    def after(*epochs: int) -> torch.Tensor:
        where, data, how = site(), examples([0, 1, 2] * 4), TrainSection(batch=12, lr=0.1, momentum=0.9)
        start = where.net.init(generator("start"))
        return train_client(Local(), where, data, start, (), (), [Phase(count) for count in epochs], how).params[
            "head.weight"
        ]

    assert torch.equal(after(1), after(1, 0))
    assert not torch.equal(after(2), after(1, 1))  # one batch holds all: only the momentum can differ


@pytest.mark.parametrize("change", [{"round": 1}, {"client": 1}])
def test_dropout_masks_differ_by_round_and_client(change, monkeypatch):
    keys = []
    monkeypatch.setattr(
        "protofed.training.draws.DerivedDropout", lambda key: keys.append(key.item()) or DerivedDropout(key)
    )
    for where in ({}, change):
        made = site(dropout=0.5, **where)
        train_client(
            Local(),
            made,
            examples([0, 1, 2] * 4),
            made.net.init(generator(0)),
            (),
            (),
            [Phase(1)],
            TrainSection(batch=4),
        )
    assert len(set(keys)) == 6  # three steps each, no mask twice


def test_a_net_that_draws_globally_in_training_is_refused():
    state = torch.get_rng_state()
    noisy = Net("noisy", lambda: (nn.Sequential(nn.Linear(4, 5), nn.AlphaDropout()), nn.Linear(5, 3)), (4,), 3)
    where, start = Site(noisy, 0, 0, 0, 1), noisy.init(generator(0))
    with pytest.raises(UserError, match="net noisy drew from torch's global generator"):
        train_client(Local(), where, examples([0, 1]), start, (), (), [Phase(1)], TrainSection())
    torch.set_rng_state(state)


def test_dropout_is_on_in_training_and_off_in_features():
    where, data = site(dropout=0.5), examples([0, 1, 2] * 4)
    params = where.net.init(generator("start"))
    z, y = where.net.features(params, data)
    assert torch.equal(z, where.net.features(params, data)[0])
    assert torch.equal(y, data.labels)
    with_dropout = train_client(Local(), where, data, params, (), (), [Phase(1)], TrainSection())
    without = train_client(Local(), site(), data, params, (), (), [Phase(1)], TrainSection())
    assert not torch.equal(with_dropout.params["head.weight"], without.params["head.weight"])


def test_clients_that_share_a_net_do_not_disturb_each_other():
    members = federation()
    alone = [
        train_client(
            Local(),
            members.client(0, 0, n),
            members.train[n],
            members.client(0, 0, n).fresh_params(),
            (),
            (),
            [Phase(1)],
            TrainSection(),
        )
        for n in (1, 0)
    ]
    again = train_client(
        Local(),
        members.client(0, 0, 1),
        members.train[1],
        members.client(0, 0, 1).fresh_params(),
        (),
        (),
        [Phase(1)],
        TrainSection(),
    )
    assert all(torch.equal(alone[0].params[name], again.params[name]) for name in again.params)
