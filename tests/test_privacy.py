"""Private prototypes: the bound, the noise, the accounting, the rules, and runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from typer.testing import CliRunner

import protofed
from grid import LocalGrid, deploy, federate, toy_config
from protofed.cli import app
from protofed.cli.privacy import privacy_plan
from protofed.engines.flower.wire import record_figures, record_tensors
from protofed.engines.loop import Loop
from protofed.errors import ConfigError, UserError
from protofed.experiment.config import Config
from protofed.experiment.privacy_figures import privacy_summary
from protofed.methods import METHODS
from protofed.net import selected
from protofed.optimiser import TrainSection
from protofed.training import train_client
from protofed.trust.privacy.accounting import (
    RoundCost,
    gaussian_delta,
    gaussian_epsilon,
    noise_factor,
    pld_epsilon,
    sensitivity,
    total_epsilon,
)
from protofed.trust.privacy.noise import DerivedNoise, SecretNoise
from protofed.trust.privacy.private_loop import PrivateLoop
from protofed.trust.privacy.private_training import clipped_gradient_sums, train_privately
from protofed.trust.privacy.release import clipped_class_sums, noise_deviations, noisy_class_sums, noisy_prototypes
from protofed.trust.privacy.rules import epsilon_after, round_cost
from protofed.trust.privacy.section import PrivacySection
from toys import config, everything, federation, net, played, runner_of

FROZEN = {"encoder": "frozen", "noise": 1.0, "floor": 1.0}
DP_SGD = {"encoder": "dp-sgd", "noise": 2.0, "step_noise": 1.0, "examples": 8}


class Fixed:
    """No noise, and every example in every step."""

    def uniform(self, count):
        return torch.zeros(count, dtype=torch.double)

    def normal(self, *shape):
        return torch.zeros(*shape, dtype=torch.double)


# ---- accounting ----

OPACUS_PRV = [
    (0.02, 1.0, 60, 1e-4, 0.898906),
    pytest.param(0.05, 1.1, 400, 1e-5, 5.599356, marks=pytest.mark.slow),
    pytest.param(0.01, 0.8, 1000, 1e-5, 3.143261, marks=pytest.mark.slow),
    pytest.param(0.1, 2.0, 200, 1e-6, 3.808061, marks=pytest.mark.slow),
]
"""Upper bounds of Opacus 1.6.0's PRV accountant, with eps_error = 0.002: rate, noise, steps, delta, epsilon."""


@pytest.mark.parametrize(("rate", "noise", "steps", "delta", "golden"), OPACUS_PRV)
def test_the_accountant_agrees_with_a_second_one(rate, noise, steps, delta, golden):
    """The other accountant adds its error 0.002 to its estimate, and the estimate is exact up to the same error."""
    epsilon = pld_epsilon(RoundCost(0.0, steps, rate, noise), 1, delta, "add-remove")
    assert epsilon == pytest.approx(golden - 0.002, abs=0.002)
    assert epsilon <= golden


@pytest.mark.slow
def test_steps_and_sums_compose_as_in_a_second_accountant():
    """Opacus: 300 steps with noise 1 and rate 0.05, and 10 releases with noise 3."""
    epsilon = pld_epsilon(RoundCost(3.0, 30, 0.05, 1.0), 10, 1e-5, "add-remove")
    assert epsilon == pytest.approx(7.726995 - 0.002, abs=0.002)


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize(
    ("noise", "rounds", "delta"), [(4.0, 50, 1e-5), pytest.param(1.0, 1, 1e-6, marks=pytest.mark.slow)]
)
def test_the_accountant_equals_the_closed_form(noise, rounds, delta, neighbours):
    moved = sensitivity(neighbours, 0.1)
    exact = gaussian_epsilon(math.sqrt(rounds) * moved / noise, delta)
    assert pld_epsilon(RoundCost(noise), rounds, delta, neighbours, moved) == pytest.approx(exact, rel=1e-3)


def test_the_closed_form_by_hand():
    """mu = 1, epsilon = 0: delta = Phi(1/2) - Phi(-1/2) = 0.382925, the total variation of two normals."""
    assert gaussian_delta(1.0, 0.0) == pytest.approx(0.382925, abs=1e-6)
    assert gaussian_epsilon(1.0, 0.382925) == pytest.approx(0.0, abs=1e-5)
    assert gaussian_epsilon(math.sqrt(50) / 4, 1e-5) == pytest.approx(8.5959, abs=1e-4)
    assert gaussian_epsilon(0.0, 1e-5) == 0.0
    assert total_epsilon(RoundCost(1.0), 0, PrivacySection()) == 0.0
    assert total_epsilon(RoundCost(0.0, 3, 0.1, 0.0), 1, PrivacySection()) == math.inf


def test_dittos_shared_model_does_not_depend_on_the_personal_one():
    """Each part of the gradient is clipped by itself, as without noise; only the shared part is sent."""
    privacy = {"encoder": "dp-sgd", "step_noise": 1.0, "examples": 20}
    shared = []
    for pull in (0.0, 20.0):
        table = {"run": {"rounds": 1}, "data": {"clients": 3, "limit": 120}, "partition": {"name": "iid"}}
        table |= {"train": {"clip": 0.5, "lr": 0.1, "epochs": 2, "batch": 20}}
        result = protofed.run({**table, "method": {"name": "ditto", "pull": pull}, "privacy": privacy})
        shared.append(result.state.server.params)
    for name, value in shared[0].items():
        assert torch.allclose(value, shared[1][name], rtol=0, atol=1e-5), name


@settings(deadline=None, max_examples=50)
@given(st.floats(0.01, 20), st.floats(1e-9, 0.1))
def test_epsilon_and_delta_are_inverse(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    assert gaussian_delta(mu, epsilon) <= delta * (1 + 1e-6)
    if epsilon > 1e-6:
        assert gaussian_delta(mu, epsilon * (1 - 1e-6)) >= delta * (1 - 1e-6)


def test_epsilon_composes_over_rounds_and_the_noise_for_a_target_gives_it():
    privacy = PrivacySection(encoder="frozen", noise=4.0)
    cost = RoundCost(4.0)
    assert total_epsilon(cost, 50, privacy) == pytest.approx(8.5959, abs=1e-4)
    assert total_epsilon(cost, 1, privacy) < total_epsilon(cost, 2, privacy) < 2 * total_epsilon(cost, 1, privacy)
    assert total_epsilon(RoundCost(8.0), 4, privacy) == pytest.approx(total_epsilon(cost, 1, privacy))  # sqrt(4) = 8/4
    factor = noise_factor(cost, 50, privacy, 2.0)
    assert total_epsilon(cost.scaled(factor), 50, privacy) <= 2.0
    assert total_epsilon(cost.scaled(factor * 0.998), 50, privacy) > 2.0
    with pytest.raises(UserError, match="above 0"):
        noise_factor(cost, 50, privacy, 0.0)


def test_without_the_package_dp_sgd_is_refused_and_prototypes_are_not(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    privacy = PrivacySection(**DP_SGD)
    with pytest.raises(UserError, match=r"pip install 'protofed\[privacy\]'"):
        total_epsilon(RoundCost(1.0, 7, 0.123, 1.0), 3, privacy)
    assert total_epsilon(RoundCost(4.0), 50, privacy) > 8


# ---- the bound ----

NUMBERS = st.floats(width=32, allow_nan=True, allow_infinity=True)
ROWS = arrays.arrays(np.float32, st.tuples(st.integers(0, 6), st.just(3)), elements=NUMBERS)
ONE = st.tuples(arrays.arrays(np.float32, (1, 3), elements=NUMBERS), st.integers(0, 3))


def moved_by(before, after, privacy):
    """The distance between two releases, each number divided by the standard deviation of its noise."""
    deviations = noise_deviations(privacy)
    squares = [((b - a) / d).square().sum() for a, b, d in zip(before, after, deviations, strict=True)]
    return float(sum(squares)) ** 0.5


@settings(deadline=None, max_examples=100)
@given(ROWS, st.data(), ONE, ONE, st.floats(1e-3, 1e3), st.floats(0.01, 0.5))
def test_no_example_moves_a_release_by_more_than_the_bound(rows, data, one, other, clip, share):
    """Rows may be huge, infinite or NaN. The tolerance is the rounding of sums in double precision."""
    labels = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))).long()
    privacy = PrivacySection(noise=1.0, clip=clip, count_share=share)

    def sums(extra):
        z, y = torch.from_numpy(rows), labels
        for row, label in extra:
            z, y = torch.cat([z, torch.from_numpy(row)]), torch.cat([y, torch.tensor([label])])
        return clipped_class_sums(z, y, 4, clip)

    assert moved_by(sums([]), sums([one]), privacy) <= sensitivity("add-remove", share) + 1e-9
    assert moved_by(sums([one]), sums([other]), privacy) <= sensitivity("replace-one", share) + 1e-9


def test_the_bound_is_reached():
    """Opposite vectors of the same class move the sum by 2; other classes move two sums and two counts by 1."""
    one, opposite = torch.tensor([[1.0, 0.0]]), torch.tensor([[-5.0, 0.0]])
    for share, other, label in [(0.1, opposite, 0), (0.5, one, 1)]:
        privacy = PrivacySection(noise=1.0, count_share=share)
        before = clipped_class_sums(one, torch.tensor([0]), 2, 1.0)
        after = clipped_class_sums(other, torch.tensor([label]), 2, 1.0)
        assert moved_by(before, after, privacy) == pytest.approx(sensitivity("replace-one", share))


@settings(deadline=None, max_examples=4)
@given(st.integers(0, 10**6), st.floats(0.01, 10), st.floats(0.1, 1e4))
def test_no_example_moves_a_sum_of_gradients_by_more_than_the_bound(seed, clip, size):
    members = federation([[0, 1, 2]])
    client, method = members.client(0, 0, 0), METHODS["fedavg"]()
    draw = torch.Generator().manual_seed(seed)
    params = {name: size * torch.randn(value.shape, generator=draw) for name, value in client.fresh_params().items()}
    x, y = client.data.take(torch.arange(3))
    keys = torch.arange(3)

    def sums(n):
        return clipped_gradient_sums(method, client, params, [params], (x[:n], y[:n], keys[:n]), None, (), clip)[0]

    fewer, more = sums(2), sums(3)
    distance = sum(float((more[name] - fewer[name]).square().sum()) for name in more) ** 0.5
    assert distance <= clip * (1 + 1e-9)


# ---- noise ----


@pytest.mark.parametrize("source", [DerivedNoise, SecretNoise])
def test_the_noise_has_the_deviation_that_the_accounting_assumes(source):
    """100,000 numbers: the standard error of a standard deviation is 0.22 %, so 2 % is nine of them."""
    privacy = PrivacySection(noise=1.5, clip=3.0, count_share=0.2)
    noise = source(federation().client(0, 0, 0))
    z, y = torch.zeros(0, 100), torch.zeros(0, dtype=torch.long)
    sums, counts = noisy_class_sums(z, y, 1000, privacy, noise)
    many = torch.cat([noisy_class_sums(z[:, :1], y, 10_000, privacy, noise)[1] for _ in range(10)])
    assert float(sums.std()) == pytest.approx(1.5 * 3.0 / math.sqrt(0.8), rel=0.02)
    assert float(many.std()) == pytest.approx(1.5 / math.sqrt(0.2), rel=0.02)
    assert abs(float(sums.mean())) < 5 * float(sums.std()) / math.sqrt(sums.numel())
    inside = float(((sums / sums.std()).abs() < 1.96).double().mean())
    assert inside == pytest.approx(0.95, abs=0.005)  # it is normal: 7 standard errors
    assert counts.shape == (1000,)


def test_derived_noise_repeats_and_secret_noise_does_not():
    client = federation().client(0, 2, 1)
    assert torch.equal(DerivedNoise(client).normal(5), DerivedNoise(client).normal(5))
    other = federation().client(0, 3, 1)
    assert not torch.equal(DerivedNoise(client).normal(5), DerivedNoise(other).normal(5))
    assert not torch.equal(SecretNoise(client).normal(5), SecretNoise(client).normal(5))
    uniform = SecretNoise(client).uniform(1000)
    assert float(uniform.min()) > 0
    assert float(uniform.max()) < 1
    assert len(SecretNoise(client).uniform(0)) == 0


def test_noisy_prototypes_by_hand():
    """Without noise: class 0 has the sum (0.6, 0.8) + (0, 1) over 2; class 1 has one example, below the floor."""
    z, y = torch.tensor([[3.0, 4.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 0, 1])
    made = noisy_prototypes(z, y, 3, PrivacySection(noise=1.0, floor=2.0), Fixed())
    assert torch.allclose(made.mean[0, 0], torch.tensor([0.3, 0.9]))
    assert made.support[:, 0].tolist() == [2.0, 0.0, 0.0]
    assert made.mean[1:].abs().sum() == 0


# ---- DP-SGD ----


def test_dp_sgd_without_noise_and_clipping_is_sgd_on_all_examples():
    members = federation([[0, 1, 2, 0]])
    client, method = members.client(0, 0, 0), METHODS["fedavg"]()
    start = client.fresh_params()
    training = TrainSection(epochs=3, batch=4, lr=0.1)
    privacy = PrivacySection(encoder="dp-sgd", step_noise=1.0, step_clip=1e9, examples=4)
    phases = method.phases(3)
    private = train_privately(method, client, start, None, (), phases, training, privacy, Fixed())
    plain = train_client(method, client, client.data, start, None, (), phases, training)
    assert private.steps == plain.steps == 3
    for name, value in plain.params.items():
        assert torch.allclose(private.params[name], value, atol=1e-6)
    assert float(private.terms["supervised"]) == pytest.approx(float(plain.terms["supervised"]), rel=1e-5)


def test_the_gradient_of_each_example_is_clipped_by_hand():
    """One example's gradient, scaled down to the norm 0.1."""
    members = federation([[0, 1, 2]])
    client, method = members.client(0, 0, 0), METHODS["fedavg"]()
    params = client.fresh_params()
    x, y = client.data.take(torch.tensor([1]))
    sums, _ = clipped_gradient_sums(method, client, params, [params], (x, y, torch.tensor([0])), None, (), 0.1)
    live = {name: value.clone().requires_grad_() for name, value in params.items()}
    torch.nn.functional.cross_entropy(client.net(live, x)[1], y).backward()
    norm = sum(float(value.grad.square().sum()) for value in live.values()) ** 0.5
    assert norm > 0.1
    for name, value in live.items():
        assert torch.allclose(sums[name], value.grad.double() * 0.1 / norm, atol=1e-7)


def test_examples_are_in_a_step_with_the_public_rate():
    """The batches of 40 steps: the number of examples in all of them is binomial."""
    members = federation([[0, 1, 2] * 10])
    client, method = members.client(0, 0, 0), METHODS["fedavg"]()
    training = TrainSection(epochs=10, batch=5)
    privacy = PrivacySection(encoder="dp-sgd", step_noise=1.0, examples=20)
    outcome = train_privately(
        method, client, client.fresh_params(), None, (), method.phases(10), training, privacy, DerivedNoise(client)
    )
    assert outcome.steps == 40 == round_cost(method, privacy, training).steps
    expected, deviation = 40 * 30 * 0.25, math.sqrt(40 * 30 * 0.25 * 0.75)
    assert abs(outcome.examples_seen - expected) < 5 * deviation


def test_the_key_of_augmentations_is_as_secret_as_the_noise(monkeypatch):
    """A crop depends on an image's position: with a key that the server knows, one example would change many crops."""
    client, method = federation([[0, 1, 2, 0]]).client(0, 0, 0), METHODS["fedavg"]()
    privacy = PrivacySection(encoder="dp-sgd", step_noise=1.0, examples=4)
    training = TrainSection(epochs=2, batch=4, augment=("flip",))
    keys = []
    monkeypatch.setattr("protofed.trust.privacy.private_training.augmenter", lambda names, key: keys.append(key))
    for noise in (SecretNoise(client), SecretNoise(client), DerivedNoise(client), DerivedNoise(client)):
        train_privately(method, client, client.fresh_params(), None, (), method.phases(2), training, privacy, noise)
    one, other, derived, again = (keys[number : number + 2] for number in (0, 2, 4, 6))
    assert len({*one, *other, *derived}) == 6  # another key in every step
    assert derived == again


# ---- rules ----


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"method": {"name": "mpfedcl"}, "privacy": {"noise": 1.0}}, "k-means, and one example can move other"),
        ({"method": {"name": "protomargin"}, "privacy": {"noise": 1.0}}, "margins, which have no bound"),
        ({"method": {"name": "local"}, "privacy": {"noise": 1.0}}, "uploads nothing"),
        ({"method": {"name": "fedavg"}, "privacy": {"noise": 1.0}}, "nothing to act on"),
        ({"method": {"name": "fedavg"}, "privacy": FROZEN}, "does not protect the weights"),
        ({"privacy": {"encoder": "frozen"}}, "privacy.noise: got 0"),
        ({"privacy": {"encoder": "dp-sgd"}}, "privacy.step_noise: got 0"),
        ({"privacy": {**DP_SGD, "noise": 0.0}}, "privacy.noise: got 0, but the method uploads prototypes"),
        ({"privacy": {**DP_SGD, "examples": 0}}, "privacy.examples: missing"),
        ({"privacy": DP_SGD, "train": {"precision": "bfloat16"}}, 'train.precision: got "bfloat16", but'),
        ({"privacy": DP_SGD, "train": {"drop_last": True}}, "train.drop_last: cannot be used with"),
        ({"privacy": {**DP_SGD, "examples": 3}}, "must be train.batch"),
        ({"privacy": {**FROZEN, "step_noise": 1.0}}, 'applies to privacy.encoder = "dp-sgd" only'),
        ({"privacy": FROZEN, "method": {"outputs": "own"}}, "depends on which classes a client has"),
        ({"privacy": FROZEN, "method": {"pull_schedule": "corollary"}}, "depends on the data"),
        ({"privacy": FROZEN, "data": {"normalise": "client"}}, "one example changes all of them"),
        ({"privacy": {"noise": -1.0}}, "privacy.noise: got -1.0; must be 0 or more"),
    ],
)
def test_what_cannot_be_private_is_refused_with_the_reason(table, message):
    with pytest.raises(ConfigError) as caught:
        Config.of(table)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_is_private_by_dp_sgd_or_refused(name):
    """A new method must get its rule."""
    table = {"method": {"name": name}, "privacy": DP_SGD}
    if name in ("creff", "fedrod", "fesem", "local", "mpfedcl", "protomargin"):
        with pytest.raises(ConfigError, match=f"cannot be used with method {name}"):
            Config.of(table)
    else:
        assert Config.of(table).privacy.is_on


def test_a_method_of_another_author_is_refused():
    class Theirs(METHODS["fedavg"]):
        """FedAvg, with something else."""

    with pytest.raises(ConfigError, match="not part of protofed"):
        Config.of({"method": {"name": Theirs}, "privacy": DP_SGD})


def test_masks_and_batch_norm_are_refused():
    members = federation([[0, 1]], [net(norm=True)])
    with pytest.raises(UserError, match="batch norm, which mixes"):
        played(config(privacy=FROZEN), members)


def test_without_noise_a_section_changes_nothing():
    assert Config.of({"privacy": {}}).digest() == Config.of({}).digest()
    assert Config.of({"privacy": FROZEN}).digest() != Config.of({}).digest()
    assert isinstance(runner_of(config(), federation()).engine, Loop)
    assert not isinstance(runner_of(config(), federation()).engine, PrivateLoop)


# ---- runs ----


def test_a_frozen_run_uploads_noisy_means_of_one_public_body():
    runner = played(config(rounds=2, privacy=FROZEN), federation())
    bodies = [selected(kept.params, "body.") for kept in runner.engine.state().values()]
    public = selected(runner.members.client(0, 0, 0).fresh_params(same=True), "body.")
    for body in bodies:
        assert all(torch.equal(body[name], public[name]) for name in public)
    heads = [selected(kept.params, "head.") for kept in runner.engine.state().values()]
    assert not torch.equal(heads[0]["head.weight"], heads[1]["head.weight"])
    summary = privacy_summary(runner.config, runner.rounds)
    assert summary["epsilon"] == pytest.approx(gaussian_epsilon(math.sqrt(2), 1e-5))
    assert summary["guarantee"] == f"({summary['epsilon']:.3g}, 1e-05)-differentially private per example (add-remove)"


def test_with_a_frozen_encoder_clients_that_have_not_trained_have_the_public_body_too():
    runner = played(config(rounds=1, privacy=FROZEN, run={"sample": 1}), federation())
    public = selected(runner.members.client(0, 0, 0).fresh_params(same=True), "body.")
    (trained,) = runner.engine.state()
    states = runner._result().state.kept
    for client in range(len(runner.members)):
        for kept in (runner.engine.client(client, 1)[1], states[client]):
            assert all(torch.equal(kept.params[name], public[name]) for name in public), (client, trained)


def test_the_upload_has_no_number_without_noise():
    members = federation([[0, 1, 2] * 20, [0, 1] * 30])
    runner = runner_of(config(privacy={**FROZEN, "floor": 5.0}), members)
    reports = runner.engine.train(0, runner._messages([0, 1]))
    for report in reports:
        support = report.upload.message.prototypes.support
        assert report.upload.num_examples == round(float(support.sum())) != 60
        assert report.upload.steps == 0
        assert ((support == 0) | (support >= 5)).all()


@pytest.mark.parametrize(
    "name", ["fednh", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedproto", "fedrep", "ditto", "fpl"))]
)
def test_dp_sgd_runs_and_is_the_same_in_worker_processes(name):
    experiment = config(name, rounds=1, privacy={**DP_SGD, "floor": 1.0})
    alone = played(experiment, federation())
    workers = played(replace(experiment, engine=replace(experiment.engine, workers=2)), federation())
    one, other = everything(alone), everything(workers)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert alone.rounds[0]["rejected"] == {}


def test_noise_without_a_guarantee_says_so():
    runner = played(config(rounds=1, privacy={"noise": 1.0}), federation())
    summary = privacy_summary(runner.config, runner.rounds)
    assert summary["epsilon"] is None
    assert summary["guarantee"].startswith("noise, no formal guarantee")
    assert privacy_summary(config(), []) is None


def test_epsilon_composes_over_a_resume(tmp_path):
    """2 rounds and 2 more, resumed, cost what 4 rounds cost, and have the same noise: nothing is released twice."""
    table = {"data": {"clients": 3}, "privacy": FROZEN, "run": {"rounds": 2}}
    first = protofed.run(table, tmp_path / "a")
    assert first.summary["privacy"]["rounds"] == 2
    resumed = protofed.run({**table, "run": {"rounds": 4}}, tmp_path / "a", resume=True)
    whole = protofed.run({**table, "run": {"rounds": 4}})
    assert resumed.summary["privacy"] == whole.summary["privacy"]
    assert resumed.summary["privacy"]["epsilon"] == pytest.approx(gaussian_epsilon(2.0, 1e-5))
    assert torch.equal(resumed.prototypes.mean, whole.prototypes.mean)
    stored = json.loads((tmp_path / "a" / "result.json").read_text())
    assert stored["privacy"]["epsilon"] == resumed.summary["privacy"]["epsilon"]


def test_only_the_rounds_of_a_client_compose():
    rows = [{"clients": [0, 1]}, {"clients": [1]}, {"clients": [2]}]
    summary = privacy_summary(config(privacy=FROZEN), rows)
    assert summary["rounds"] == 2
    assert summary["epsilon"] == pytest.approx(gaussian_epsilon(math.sqrt(2), 1e-5))


def test_an_engine_that_cannot_add_noise_is_refused():
    with pytest.raises(UserError, match="clients are trained one after the other"):
        runner_of(config(privacy=FROZEN, engine={"name": "stacked"}), federation())


# ---- a deployed federation ----


def test_a_deployed_client_adds_secret_noise_and_reports_no_exact_number(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda file: None)
    uploads = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        deploy(tmp_path / folder, toy_config("fedproto", rounds=1, privacy=FROZEN))
        grid = LocalGrid(tmp_path / folder)
        result = federate(tmp_path / folder, grid)
        assert result.rounds[0]["rejected"] == {}
        replies = {(name, m.metadata.message_type): r for name, m, r in grid.exchanged}
        assert record_figures(replies["a", "query.enrol"].content)["counts"] == [[], []]
        figures = record_figures(replies["a", "train"].content)
        assert figures["terms"] == {}
        assert figures["examples_seen"] == 0.0
        uploads.append(record_tensors(replies["a", "train"].content)["prototypes/mean"])
    assert uploads[0].shape != uploads[1].shape or not torch.equal(*uploads)  # the seed is the same, the noise is not


# ---- the command ----


def test_the_command_shows_epsilon_before_a_run_and_the_noise_for_a_target(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text('[privacy]\nencoder = "frozen"\nnoise = 4.0\n[run]\nrounds = 50\n')
    shown = CliRunner().invoke(app, ["privacy", str(file), "--epsilon", "2"])
    assert "8.596 in total" in shown.output
    assert "For a total epsilon of 2 (add-remove): privacy.noise = 14.1" in shown.output
    figures = json.loads(CliRunner().invoke(app, ["privacy", str(file), "--json"]).output)
    assert figures["epsilon"]["add-remove"]["total"] == pytest.approx(8.5959, abs=1e-4)
    file.write_text('[privacy]\nencoder = "frozen"\n')
    shown = CliRunner().invoke(app, ["privacy", str(file), "--epsilon", "2"]).output
    assert "privacy.noise = " in shown
    assert "Noise per upload" not in shown  # the experiment has none yet
    assert "in total" not in shown
    trained = CliRunner().invoke(app, ["privacy", "--epsilon", "2"]).output
    assert 'No noise reaches an epsilon: set privacy.encoder = "frozen" or "dp-sgd".' in trained
    assert "no noise, no guarantee" in CliRunner().invoke(app, ["privacy"]).output
    plan = privacy_plan(Config.of({"privacy": {"noise": 1.0}}))
    assert plan["formal"] is False
    assert "epsilon" not in plan


@pytest.mark.slow
def test_the_command_knows_dp_sgd():
    plan = privacy_plan(Config.of({"privacy": DP_SGD, "run": {"rounds": 3}}), 2.0)
    assert plan["steps"] == 1
    experiment = Config.of({"privacy": DP_SGD})
    total = epsilon_after(experiment.method, experiment.privacy, experiment.train, 3)
    assert plan["epsilon"]["add-remove"]["total"] == total
    assert plan["target"]["noise"] == pytest.approx(2 * plan["target"]["step_noise"])
