"""Baselines in which a client has a model, a head or fine-tuning of its own: ditto, local, fedbabu, fedrod."""

from __future__ import annotations

import math
from typing import get_type_hints

import pytest
import torch

from protofed import training as local
from protofed.core import Batch, KeptModel, Phase, Weights
from protofed.engines.loop import Loop
from protofed.errors import UserError
from protofed.experiment.members import Members
from protofed.experiment.runner import Runner
from protofed.methods import METHODS
from protofed.methods.ditto import Ditto
from protofed.methods.fedbabu import FedBABU
from protofed.methods.fedrod import FedROD, KeptHead
from protofed.models.export import write_model
from protofed.net import Net, selected, without_added
from protofed.training import take_part, train_client
from test_baselines import EQUAL, same
from toys import config, federation, figures, net, played, played_on, runner_of

# Ditto


def personal(
    pull: float, rounds: int = 3, initial_weights: str = "own", **train: float
) -> tuple[dict[str, torch.Tensor], Runner]:
    options = {"pull": pull, "initial_weights": initial_weights}
    runner = played(config("ditto", rounds=rounds, method=options, train=train), federation())
    return {
        f"{client}/{name}": value for client, own in runner.engine.state().items() for name, value in own.params.items()
    }, runner


@pytest.mark.parametrize("initial_weights", ["same", "own"])
def test_ditto_without_pull_is_local(initial_weights):
    ours, _ = personal(0.0, initial_weights=initial_weights)
    alone = played(config("local", method={"initial_weights": initial_weights}), federation()).engine.state()
    same(ours, {f"{client}/{name}": value for client, own in alone.items() for name, value in own.params.items()})


def test_ditto_with_a_very_large_pull_is_the_shared_model():
    # a step of SGD on pull/2 ||v - w||^2 with lr * pull = 1 lands on the model that was sent, but for the data's own step
    plain = {"lr": 1e-4, "momentum": 0.0}
    ours, runner = personal(pull=1e4, rounds=2, **plain)
    sent = played(config("ditto", rounds=1, method={"pull": 1e4}, train=plain), federation()).server.params
    busy = [client for client in range(6) if len(runner.members.train[client])]
    for name, value in sent.items():
        for client in busy:
            torch.testing.assert_close(ours[f"{client}/{name}"], value, rtol=0.01, atol=1e-3)


def test_dittos_shared_model_is_fedavgs():
    _, runner = personal(0.75)
    same(runner.server.params, played(config("fedavg"), federation()).server.params)


CLIPPED = {"clip": 0.05, "momentum": 0.9, "weight_decay": 0.01, "epochs": 2}
"""Every gradient of the toys is longer than this `clip`, so that each step is scaled down."""


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dittos_shared_model_is_fedavgs_to_the_last_bit_when_gradients_are_clipped(dropout):
    members = federation(nets=[net(dropout=dropout)] * 6)
    ditto, fedavg, unclipped = (
        played_on(Loop, config(name, rounds=2, train={**CLIPPED, **other}), members).server.params
        for name, other in (("ditto", {}), ("fedavg", {}), ("fedavg", {"clip": 0.0}))
    )
    same(ditto, fedavg, rtol=0, atol=0)
    assert all(not torch.equal(value, unclipped[name]) for name, value in fedavg.items())


def test_dittos_personal_model_is_locals_when_gradients_are_clipped():
    ditto, local = (
        played_on(Loop, config(name, rounds=2, method={"initial_weights": "same", **more}, train=CLIPPED), federation())
        for name, more in (("ditto", {"pull": 0.0}), ("local", {}))
    )
    for client, kept in local.engine.state().items():
        same(ditto.engine.state()[client].params, kept.params, rtol=0, atol=0)


def test_ditto_predicts_with_the_own_model():
    own = Net("line", lambda: (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)), (2,), 2)
    one, two = (own.init(torch.Generator().manual_seed(seed)) for seed in (0, 1))
    method, x = Ditto(), torch.ones(1, 2)
    params = method.receive(KeptModel(two), Weights(one))
    assert torch.equal(method.predict(own, params, x, Weights(one), KeptModel(two))["head"], own(two, x)[1])


# Local


FEDNH_LOCAL = {"momentum": 0.9, "decay": 0.99, "epochs": 2}


def test_local_as_fednhs_code_trains_it():
    """20 rounds in a row from one start, with the learning rates lr * 0.99^0, ..., lr * 0.99^19 and a new optimiser each.

    The reference is torch's SGD on the same batches. Both round differently, in 20 * 2 * 3 steps.
    """
    members = federation(EQUAL)
    experiment = config("local", rounds=20, method={"initial_weights": "same"}, train=FEDNH_LOCAL)
    kept = played_on(Loop, experiment, members).engine.state()
    start = members.server(0, 0).fresh_params()
    for number in (0, 3):
        model = {name: value.clone().requires_grad_() for name, value in start.items()}
        for round in range(20):
            client = members.client(0, round, number)
            optimiser = torch.optim.SGD(model.values(), lr=0.1 * 0.99**round, momentum=0.9)
            for epoch in local.batch_schedule(client, client.num_examples, (Phase(2),), experiment.train)[0]:
                for positions in epoch:
                    x, y = client.data.take(positions)
                    optimiser.zero_grad()
                    torch.nn.functional.cross_entropy(client.net(model, x)[1], y).backward()
                    optimiser.step()
        same(kept[number].params, {name: value.detach() for name, value in model.items()}, rtol=1e-4, atol=1e-5)


def test_a_client_of_local_does_not_depend_on_the_others():
    experiment = config("local", rounds=20, method={"initial_weights": "same"}, train=FEDNH_LOCAL)
    together = played_on(Loop, experiment, federation(EQUAL)).engine.state()
    only = federation([labels if number == 2 else [] for number, labels in enumerate(EQUAL)])
    alone = played_on(Loop, experiment, only).engine.state()
    same(together[2].params, alone[2].params, rtol=0, atol=0)
    assert not torch.equal(together[0].params["head.weight"], alone[0].params["head.weight"])  # it has no examples


# FedBABU


def test_fedbabus_head_never_moves_before_tuning_which_starts_from_the_servers_body():
    members = federation(EQUAL)
    runner = played(config("fedbabu", rounds=3), members)
    first = runner.method.start(members.server(0, 0)).params
    moved = {name for name in first if not torch.equal(first[name], runner.server.params[name])}
    assert moved == {name for name in first if name.startswith("body.")}
    body = sum(first[name].numel() for name in moved)
    assert figures(runner)["cost"]["up_params"] == 4 * body
    (phase,) = runner.method.tune(1)
    assert (phase.epochs, phase.trains) == (5, ("",))


def test_fedbabu_is_tested_with_a_model_tuned_from_the_servers_body():
    members, training = federation(EQUAL), config().train
    method = FedBABU(fine_tune=3)
    server = played(config("fedbabu", rounds=2), members).server
    client = members.client(0, 0, 0)
    found = local.params_for_testing(method, client, method.join(client), server, training)
    expected = train_client(
        method, client, client.data, server.params, server, (), (Phase(3),), training, "tune"
    ).params
    same(found, expected)
    assert any(not torch.equal(found[name], server.params[name]) for name in found if name.startswith("head."))
    assert FedBABU(fine_tune=0).tune(1) == ()


def test_fedbabu_can_tune_the_clients_last_body():
    members, training = federation(EQUAL), config().train
    method = FedBABU(fine_tune=3, tune_from="client")
    client = members.client(0, 0, 0)
    server = method.start(members.server(0, 0))
    trained, _ = take_part(method, client, method.join(client), server, training)
    kept = method.keep(trained)
    same(kept.params, selected(trained.params, "body."), rtol=0, atol=0)
    later = Weights({name: value + 1 for name, value in server.params.items()})
    tuned = local.params_for_testing(method, client, kept, later, training)
    start = {**trained.params, **selected(later.params, "head.")}
    expected = train_client(method, client, client.data, start, later, kept, (Phase(3),), training, "tune").params
    same(tuned, expected, rtol=0, atol=0)
    same(method.receive(kept, later), later.params, rtol=0, atol=0)  # training starts from the server's model
    untuned = FedBABU(fine_tune=0, tune_from="client")
    same(local.params_for_testing(untuned, client, kept, later, training), later.params, rtol=0, atol=0)


def test_where_fedbabu_tunes_from_changes_tests_only():
    members = federation(EQUAL)
    runs = [
        played(config("fedbabu", run={"sample": 0.5}, method={"tune_from": where}), members)
        for where in ("server", "client")
    ]
    same(*(runner.server.params for runner in runs), rtol=0, atol=0)
    servers, clients = (runner.engine.state() for runner in runs)
    assert not any(kept.params for kept in servers.values())
    assert all(set(kept.params) == set(selected(runs[0].server.params, "body.")) for kept in clients.values())


def test_a_client_that_never_trained_tunes_the_initial_body():
    members, method = federation(EQUAL), FedBABU(tune_from="client")
    server = method.start(members.server(0, 0))
    same(method.tune_start(method.join(members.client(0, 0, 2)), server), server.params, rtol=0, atol=0)


# FedROD


def test_fedrods_balanced_softmax_by_hand():
    # scores 1 and 0; the client has class 0 three times as often as class 1
    class Fixed:
        def embed(self, params, x):
            return params["body.w"] * x

        def head(self, params, z):
            return z

    params = {
        "body.w": torch.tensor(1.0, requires_grad=True),
        "method.weight": torch.zeros(2, 2),
        "method.bias": torch.tensor([0.0, 2.0]),
    }
    batch = Batch(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), torch.ones(1))
    loss = FedROD().loss(Fixed(), params, batch, None, KeptHead({}, torch.tensor([0.75, 0.25])))
    balanced = -math.log(0.25 * math.e**0 / (0.75 * math.e**1 + 0.25 * math.e**0))
    assert loss.terms["balanced"].item() == pytest.approx(balanced, rel=1e-6)
    assert loss.terms["personal"].item() == pytest.approx(-math.log(math.e**2 / (math.e**1 + math.e**2)), rel=1e-6)


def test_fedrods_shared_branch_is_untouched_by_the_personal_loss():
    members = federation(EQUAL)
    client = members.client(0, 0, 0)
    method = FedROD()
    kept = method.join(client)
    params = method.receive(kept, method.start(members.server(0, 0)))
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    loss = method.loss(client.net, leaves, Batch.of(*client.data.take(torch.arange(5))), None, kept)
    shared = [name for name in leaves if not name.startswith("method.")]
    found = torch.autograd.grad(
        loss.terms["personal"], [leaves[name] for name in shared], allow_unused=True, retain_graph=True
    )
    assert all(grad is None or not grad.any() for grad in found)
    own = torch.autograd.grad(loss.terms["balanced"], [leaves["method.weight"]], allow_unused=True)
    assert own == (None,)


@pytest.mark.parametrize("options", [{}, {"personal": "after"}, {"hyper": 8}, {"hyper": 8, "personal": "after"}])
def test_fedrod_keeps_its_head_or_shares_a_hyper_network(options):
    runner = played(config("fedrod", rounds=3, method=options), federation(EQUAL))
    kept = runner.engine.state()
    if "hyper" in options:
        assert not kept[0].params
        assert runner.server.params["method.hyper2"].any()
    else:
        assert kept[0].params["method.weight"].any()
        assert not any(name.startswith("method.") for name in runner.server.params)
    assert runner.rounds[-1]["accuracy_global"] is not None


def unbiased() -> Net:
    """A net with a head of one dense layer without a bias."""
    return Net("unbiased", lambda: (torch.nn.Linear(4, 5), torch.nn.Linear(5, 3, bias=False)), (4,), 3)


@pytest.mark.parametrize("hyper", [0, 8])
def test_fedrods_personal_head_has_a_bias_only_if_the_shared_head_has_one(hyper):
    for number, (made, names) in enumerate(
        ((unbiased(), {"method.weight"}), (net(), {"method.weight", "method.bias"}))
    ):
        runner = played(config("fedrod", method={"hyper": hyper}), federation(EQUAL, [made] * 4))
        kept, server = runner.engine.state()[0], runner.server.params
        assert set(kept.params) == (set() if hyper else names)
        if hyper:
            assert server["method.hyper2"].shape == (3 * (5 + number), 8)
        x = runner.members.train[0].take(torch.arange(9))[0]
        params = runner.method.receive(kept, runner.server)
        exported = runner.method.exportable_params(params, kept)
        answer = runner.method.predict(made, params, x, runner.server, kept)["head"]
        torch.testing.assert_close(made(exported, x)[1], answer)
        assert not torch.allclose(made(params, x)[1], answer, atol=1e-3)  # the personal head counts


def test_fedrod_by_hand_without_a_bias():
    # z = (1, 2); shared head: (1, 2); personal head: (1 * 3 + 2 * 0, 1 * 0 + 2 * -1) = (3, -2)
    own = Net("line", lambda: (torch.nn.Identity(), torch.nn.Linear(2, 2, bias=False)), (2,), 2)
    params = {"head.weight": torch.eye(2), "method.weight": torch.tensor([[3.0, 0.0], [0.0, -1.0]])}
    kept = KeptHead({"method.weight": params["method.weight"]}, torch.tensor([0.5, 0.5]))
    x = torch.tensor([[1.0, 2.0]])
    assert FedROD().predict(own, params, x, Weights({}), kept)["head"].tolist() == [[4.0, 0.0]]
    # the hyper-network: relu((1, -1) * 0.5) = (0.5, 0), times the columns (6, 0, 0, -2) and anything
    hyper = {
        "head.weight": torch.eye(2),
        "method.hyper1": torch.tensor([[1.0, 0.0], [-1.0, 0.0]]),
        "method.hyper2": torch.tensor([[6.0, 7.0], [0.0, 7.0], [0.0, 7.0], [-2.0, 7.0]]),
    }
    kept = KeptHead({}, torch.tensor([0.5, 0.5]))
    assert FedROD(hyper=2).predict(own, hyper, x, Weights({}), kept)["head"].tolist() == [[4.0, 0.0]]
    assert FedROD(hyper=2).exportable_params(hyper, kept)["head.weight"].tolist() == [[4.0, 0.0], [0.0, 0.0]]


def test_fedrod_does_not_export_a_head_of_two_layers():
    def layers():
        return torch.nn.Linear(4, 5), torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Linear(5, 3))

    deep = Net("deep", layers, (4,), 3)
    members = federation(EQUAL, [deep] * 4)
    for method in (FedROD(), FedROD(hyper=4)):
        kept = method.join(members.client(0, 0, 0))
        with pytest.raises(UserError, match="one dense layer"):
            method.exportable_params(method.receive(kept, method.start(members.server(0, 0))), kept)


@pytest.mark.parametrize("rule", ["softmax", "prototype"])
def test_fedrod_with_a_head_of_two_layers_ends_with_a_result_and_predicts(rule, tmp_path):
    def layers():
        return torch.nn.Linear(4, 5), torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Linear(5, 3))

    members = federation(EQUAL, [Net("deep", layers, (4,), 3)] * 4)
    result = runner_of(config("fedrod", rounds=1, eval={"unknown": rule}), members).go()
    assert result.summary["accuracy"]["head"]
    assert len(result.predict(members.test[0].x.numpy(), 0)) == len(members.test[0])
    with pytest.raises(UserError, match="one dense layer"):
        result.model(0)
    with pytest.raises(UserError, match="one dense layer"):
        write_model(result.predictor(0), tmp_path / "model.safetensors")


@pytest.mark.parametrize("hyper", [0, 8])
def test_fedrods_personal_head_does_not_change_how_the_shared_model_is_clipped(hyper):
    # the head that trains after the rest cannot touch the rest
    together, after = (
        played_on(
            Loop,
            config("fedrod", rounds=2, method={"personal": when, "hyper": hyper}, train=CLIPPED),
            federation(),
        ).server.params
        for when in ("together", "after")
    )
    same(*(without_added(params) for params in (together, after)), rtol=0, atol=0)


def test_with_equal_classes_fedrods_shared_model_is_fedavgs():
    ours = played(config("fedrod"), federation(EQUAL)).server.params
    same(ours, played(config("fedavg"), federation(EQUAL)).server.params, rtol=1e-4, atol=1e-5)


# All that keep a head or a model


KEEP_A_MODEL = ["ditto", "fedper", "fedproto", "fedrep", "local"]


def first_kept(name: str, members: Members, **options: str) -> list[dict[str, torch.Tensor]]:
    """The parameters that each client keeps before its first round."""
    method = METHODS[name](**options)
    return [method.join(members.client(0, 0, number)).params for number in range(len(members))]


def test_every_method_that_keeps_a_model_has_the_option():
    assert sorted(name for name in METHODS if "initial_weights" in get_type_hints(METHODS[name])) == KEEP_A_MODEL
    assert {name: METHODS[name]().initial_weights for name in KEEP_A_MODEL} == {
        **dict.fromkeys(KEEP_A_MODEL, "own"),
        "ditto": "same",
    }


@pytest.mark.parametrize("name", KEEP_A_MODEL)
def test_clients_start_from_the_servers_draw_or_from_their_own(name):
    members = federation(EQUAL)
    server = members.server(0, 0).fresh_params()
    for kept in first_kept(name, members, initial_weights="same"):
        assert kept
        same(kept, {key: server[key] for key in kept}, rtol=0, atol=0)
    own = first_kept(name, members, initial_weights="own")
    for number, kept in enumerate(own):
        fresh = members.client(0, 0, number).fresh_params()
        same(kept, {key: fresh[key] for key in kept}, rtol=0, atol=0)
        assert all(not torch.equal(value, server[key]) for key, value in kept.items())
        assert all(not torch.equal(value, own[number - 1][key]) for key, value in kept.items())


def test_the_same_start_does_not_depend_on_the_round_but_on_the_seed():
    members = federation(EQUAL)
    first = members.server(0, 0).fresh_params()
    same(members.client(0, 7, 2).fresh_params(same=True), first, rtol=0, atol=0)
    assert not torch.equal(members.client(1, 0, 2).fresh_params(same=True)["head.weight"], first["head.weight"])


@pytest.mark.parametrize("name", ["ditto", "fedper", "fedrep"])
def test_the_same_start_is_that_of_the_method_s_server(name):
    members, method = federation(EQUAL), METHODS[name](initial_weights="same")
    client, server = members.client(0, 0, 3), method.start(members.server(0, 0))
    start = method.receive(method.join(client), method.broadcast(server, 3))
    same({key.removeprefix("method."): value for key, value in start.items()}, server.params, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["fedproto", "local"])
def test_with_mixed_nets_clients_with_equal_nets_start_equally(name):
    small, large = net(), net(hidden=8)
    members = federation(EQUAL, [small, large, small, large])
    kept = first_kept(name, members, initial_weights="same")
    same(kept[0], kept[2], rtol=0, atol=0)
    same(kept[1], kept[3], rtol=0, atol=0)
    assert kept[0]["body.0.weight"].shape != kept[1]["body.0.weight"].shape
    runner = played(config(name, method={"initial_weights": "same"}), members)
    assert runner.rounds[-1]["accuracy_head"] > 0.5


@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedbabu"])
def test_a_net_without_a_head_of_its_own_is_refused(name):
    headless = Net("headless", lambda: (torch.nn.Linear(4, 3), torch.nn.Identity()), (4,), 3)
    with pytest.raises(UserError, match="net headless has no head"):
        played(config(name), federation(EQUAL, [headless] * 4))
