"""The baselines by hand, and what each becomes at the ends of its options."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args, get_type_hints

import pytest
import torch

from protofed import training as local
from protofed.core import Batch, KeptModel, Phase, Upload, Weights
from protofed.engines.loop import Loop
from protofed.engines.scoring import tally
from protofed.errors import UserError
from protofed.experiment.members import Members
from protofed.experiment.runner import Runner
from protofed.methods import METHODS
from protofed.methods.ditto import Ditto
from protofed.methods.fedatt import FedAtt
from protofed.methods.fedbabu import FedBABU
from protofed.methods.fedper import FedPer
from protofed.methods.fedprox import FedProx
from protofed.methods.fedrep import FedRep
from protofed.methods.fedrod import FedROD, KeptHead
from protofed.methods.fesem import Centres, FeSEM
from protofed.net import Net, selected, without_added
from protofed.nets.cnn import Cnn
from protofed.training import take_part, train_client
from toys import config, everything, federation, figures, net, played, played_on

EQUAL = [[0, 1, 2] * 3] * 4


def weights(*values: float) -> Weights:
    return Weights({"body.w": torch.tensor(values)})


def uploads(*models: Weights, sizes: tuple[int, ...] = ()) -> list[Upload]:
    return [Upload(n, (sizes or (1,) * len(models))[n], 1, 1.0, model) for n, model in enumerate(models)]


SITE = SimpleNamespace(
    net=SimpleNamespace(trains=lambda name, value: value.is_floating_point()),
    generator=lambda purpose: torch.Generator().manual_seed(0),
)
"""As much of a site as aggregation needs."""


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], **tolerance: float) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], **tolerance)


# FedProx


def test_fedprox_has_mu_times_the_way_from_the_servers_model_in_its_gradient():
    flat = SimpleNamespace(trains=lambda name, value: value.is_floating_point())

    class Flat:
        trains = staticmethod(flat.trains)

        def __call__(self, params, x):
            return x, torch.zeros(len(x), 2)  # the loss does not depend on the weights

    batch = Batch(torch.zeros(1, 2), torch.tensor([0]), torch.ones(1))
    down = Weights({"body.w": torch.tensor([1.0, 2.0]), "body.count": torch.tensor(3)})
    moved = torch.tensor([4.0, 1.0], requires_grad=True)
    loss = FedProx(mu=0.5).loss(Flat(), {"body.w": moved, "body.count": torch.tensor(9)}, batch, down, ())
    assert loss.terms["proximal"].item() == pytest.approx(0.25 * (9 + 1))
    (grad,) = torch.autograd.grad(loss.total, moved)
    assert grad.tolist() == pytest.approx([0.5 * 3, 0.5 * -1])


def test_fedprox_without_mu_is_fedavg():
    same(
        everything(played(config("fedprox", method={"mu": 0.0}), federation())),
        everything(played(config("fedavg"), federation())),
    )


def test_fedprox_with_a_large_mu_hardly_moves():
    def way(mu: float) -> float:
        runner = played(config("fedprox", rounds=1, method={"mu": mu}, train={"lr": 0.01}), federation())
        start = runner.method.start(runner.members.server(0, 0)).params
        return sum(float((value - start[name]).square().sum()) for name, value in runner.server.params.items())

    assert way(50.0) < 0.5 * way(0.0)


# FedPer, FedRep


def test_parts_of_a_net():
    params = Net("cnn", lambda: Cnn().build((1, 28, 28), 10), (1, 28, 28), 10).init(torch.Generator())
    assert sum(value.numel() for value in selected(params, "convs").values()) == 5_280  # FedProto's Table 1: 106k / 20
    assert set(selected(params, "convs")) | set(selected(params, "not convs")) == set(params)
    assert set(selected(params, "body.")) == {name for name in params if name.startswith("body.")}
    assert selected(params, "") == params
    assert set(selected(params, "not body.")) == {name for name in params if name.startswith("head.")}


def test_fedper_shares_the_body_and_keeps_heads():
    runner = played(config("fedper", rounds=2), federation(EQUAL))
    kept = runner.engine.state()
    assert all(
        set(own.params) == {name for name in runner.server.params if name.startswith("head.")} for own in kept.values()
    )
    assert any(not torch.equal(value, kept[1].params[name]) for name, value in kept[0].params.items())
    body = sum(value.numel() for name, value in runner.server.params.items() if name.startswith("body."))
    assert figures(runner)["cost"]["up_params"] == 4 * body
    first = runner.method.start(runner.members.server(0, 0)).params
    assert all(torch.equal(first[name], runner.server.params[name]) for name in first if name.startswith("head."))


def test_fedper_with_an_empty_head_is_fedavg():
    whole = type("Whole", (FedPer,), {"shared_part": "", "start": lambda self, site: Weights(site.fresh_params())})()
    same(played(config(whole), federation()).server.params, played(config("fedavg"), federation()).server.params)


def test_fedrep_moves_the_head_only_then_the_body_only():
    first, second = FedRep(head_epochs=3).phases(2)
    assert (first.epochs, first.trains, second.epochs, second.trains) == (3, ("not body.",), 2, ("body.",))
    members = federation(EQUAL)
    for head_epochs, epochs, part in ((3, 0, ""), (0, 2, "body.")):
        method = FedRep(head_epochs=head_epochs)
        client = members.client(0, 0, 0)
        kept, down = method.join(client), method.broadcast(method.start(members.server(0, 0)), 0)
        trained, _ = take_part(method, client, kept, down, config(train={"epochs": epochs}).train)
        moved = {name for name in trained.start if not torch.equal(trained.start[name], trained.params[name])}
        assert moved == ({name for name in trained.start if name.startswith(part)} if part else set())
    head_only = FedRep(head_epochs=2)
    client = members.client(0, 0, 0)
    trained, _ = take_part(
        type("HeadOnly", (FedRep,), {"phases": lambda self, epochs: head_only.phases(1)[:1]})(),
        client,
        head_only.join(client),
        head_only.broadcast(head_only.start(members.server(0, 0)), 0),
        config().train,
    )
    moved = {name for name in trained.start if not torch.equal(trained.start[name], trained.params[name])}
    assert moved == {name for name in trained.start if name.startswith("head.")}


# FedAtt


def test_fedatt_by_hand_on_two_layers():
    server = Weights({"body.a": torch.tensor([0.0, 0.0]), "body.b": torch.tensor([1.0])})
    one = Weights({"body.a": torch.tensor([3.0, 4.0]), "body.b": torch.tensor([1.0])})
    two = Weights({"body.a": torch.tensor([0.0, 2.0]), "body.b": torch.tensor([2.0])})
    after = FedAtt(step=1.2).aggregate(SITE, server, uploads(one, two)).params
    a, b = math.exp(5) / (math.exp(5) + math.exp(2)), math.exp(0) / (math.exp(0) + math.exp(1))
    assert after["body.a"].tolist() == pytest.approx([1.2 * a * 3, 1.2 * (a * 4 + (1 - a) * 2)])
    assert after["body.b"].item() == pytest.approx(1 + 1.2 * (1 - b) * 1)


# How far a layer moved, and the two norms of that: a diagonal matrix has the singular values 3 and 4.
WAYS = {
    "matrix": ([[3.0, 0.0], [0.0, 4.0]], {"spectral": 4, "frobenius": 5}),
    "tall": ([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]], {"spectral": 4, "frobenius": 5}),
    "rank one": ([[2.0, 2.0], [2.0, 2.0]], {"spectral": 4, "frobenius": 4}),
    "row": ([[[[3.0, 0.0], [0.0, 4.0]]]], {"spectral": 5, "frobenius": 5}),  # one filter: one row of four
    "filters": ([[[[3.0]], [[0.0]]], [[[0.0]], [[4.0]]]], {"spectral": 4, "frobenius": 5}),  # two filters of 2x1x1
    "vector": ([3.0, 4.0], {"spectral": 5, "frobenius": 5}),
    "number": (3.0, {"spectral": 3, "frobenius": 3}),
    "still": ([[0.0, 0.0], [0.0, 0.0]], {"spectral": 0, "frobenius": 0}),
}


@pytest.mark.parametrize("norm", ["spectral", "frobenius"])
@pytest.mark.parametrize("layer", WAYS)
def test_fedatts_norms_by_hand(layer, norm):
    way, lengths = torch.tensor(WAYS[layer][0]), WAYS[layer][1]
    server, still, moved = (Weights({"body.w": step * way}) for step in (0, 0, 1))
    after = FedAtt(step=1.0, norm=norm).aggregate(SITE, server, uploads(still, moved)).params["body.w"]
    share = math.exp(lengths[norm]) / (1 + math.exp(lengths[norm]))
    torch.testing.assert_close(after, share * way)


def test_fedatts_norm_is_that_of_its_code():
    way = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    both = torch.stack([way, 2 * way]).double()
    largest = torch.linalg.svdvals(way.double())[0].item()
    assert FedAtt().lengths(both).tolist() == pytest.approx([largest, 2 * largest], rel=1e-12)
    assert FedAtt().lengths(both.mT).tolist() == pytest.approx([largest, 2 * largest], rel=1e-12)


def test_fedatt_of_equal_clients_is_their_common_step():
    after = FedAtt(step=1.0).aggregate(SITE, weights(0.0), uploads(weights(2.0), weights(2.0), sizes=(1, 9))).params
    assert after["body.w"].item() == pytest.approx(2)


def test_fedatt_leaves_out_who_has_no_examples():
    after = FedAtt(step=1.0).aggregate(SITE, weights(0.0), uploads(weights(2.0), weights(0.0), sizes=(3, 0))).params
    assert after["body.w"].item() == pytest.approx(2)


def test_fedatt_averages_the_statistics_of_batch_norm():
    runner = played(config("fedatt", rounds=2, train={"lr": 0.3}), federation(EQUAL, nets=[net(norm=True)] * 4))
    variances = [value for name, value in runner.server.params.items() if name.endswith("running_var")]
    assert variances
    assert all((value > 0).all() for value in variances)


# FeSEM


def test_fesem_assigns_and_averages_and_an_empty_centre_stays():
    server = Centres(
        {"0": weights(0.0).params, "1": weights(10.0).params, "2": weights(99.0).params}, torch.tensor([2, 2, 2])
    )
    after = FeSEM().aggregate(SITE, server, uploads(weights(1.0), weights(3.0), weights(8.0), sizes=(3, 1, 5)))
    assert after.member.tolist() == [0, 0, 1]
    assert [after.models[k]["body.w"].item() for k in "012"] == [1.5, 8, 99]
    equal = FeSEM(weights="equal").aggregate(SITE, server, uploads(weights(1.0), weights(3.0), sizes=(3, 1)))
    assert equal.models["0"]["body.w"].item() == 2
    assert FeSEM().broadcast(after, 2).params["body.w"].item() == 8
    assert FeSEM().broadcast(after, 3).params["body.w"].item() == 1.5  # a newcomer: the centre with the most members


def opposed() -> Members:
    """Six clients with the same inputs; three of them call class 0 what the others call class 1."""
    members = federation([[0, 1] * 20] * 6)
    turned = [replace(own, y=1 - own.y) if number % 2 else own for number, own in enumerate(members.train)]
    return replace(members, train=tuple(turned))


def test_fesem_puts_clients_that_contradict_each_other_into_different_centres():
    members = opposed()
    runner = played(config("fesem", rounds=4, method={"centres": 2}), members)
    found = runner.server.member.tolist()
    assert found[0] == found[2] == found[4] != found[1] == found[3] == found[5]
    shares = [
        tally(lambda x, n=n: {"": net()(runner.method.broadcast(runner.server, n).params, x)[1]}, own)[""] / 40
        for n, own in enumerate(members.train)
    ]
    assert min(shares) > 0.9  # one model for all would be right in half of the cases


def test_fesem_counts_no_statistics_as_weights():
    counted = {"body.w": torch.tensor([4.9]), "body.norm.num_batches_tracked": torch.tensor(310)}
    centres = [
        {**counted, "body.w": torch.tensor([w]), "body.norm.num_batches_tracked": torch.tensor(n)}
        for w, n in ((0.0, 300), (5.0, 100))
    ]
    server = Centres({"0": centres[0], "1": centres[1]}, torch.tensor([1]))
    after = FeSEM(centres=2).aggregate(SITE, server, uploads(Weights(counted)))
    assert after.member.tolist() == [1]


def test_fesem_with_one_centre_is_fedavg():
    ours = played(config("fesem", method={"centres": 1}), federation())
    same(ours.server.models["0"], played(config("fedavg"), federation()).server.params)


def weighs_by_size_or_equally(name: str) -> bool:
    hint = get_type_hints(METHODS[name]).get("weights")
    return set(get_args(hint)) == {"size", "equal"}


@pytest.mark.parametrize("name", sorted(filter(weighs_by_size_or_equally, METHODS)))
@pytest.mark.parametrize(("weights", "expected"), [("size", 1.5), ("equal", 2.0)])
def test_uploads_count_by_size_or_equally(name, weights, expected):
    # clients with 3 and 1 examples upload models full of 1 and of 3: (3 * 1 + 1 * 3) / 4 = 1.5, (1 + 3) / 2 = 2
    members = federation([[0, 1, 2], [0]], [net(norm=True)] * 2)
    method = METHODS[name](weights=weights, **({"centres": 1} if name == "fesem" else {}))
    server, sent = method.start(members.server(0, 0)), []
    for number, value in enumerate((1.0, 3.0)):
        client, down = members.client(0, 0, number), method.broadcast(server, number)
        message = method.upload(take_part(method, client, method.join(client), down, config().train)[0])
        params = {name: torch.full_like(tensor, value) for name, tensor in message.params.items()}
        sent.append(Upload(number, client.num_examples, 1, 1.0, message._replace(params=params)))
    after = method.broadcast(method.aggregate(members.server(0, 0), server, sent), 0).params
    part = "body.1.running" if name == "fedatt" else "body."  # fedatt averages only the statistics of batch norm
    body = [value for name, value in after.items() if name.startswith(part) and value.is_floating_point()]
    assert body
    assert all((value == expected).all() for value in body)


def test_the_personalised_baselines_weigh_by_size_or_equally():
    assert {"fedavg", "fedbabu", "fedper", "fedrep", "ditto", "fedrod", "fesem"} <= {
        name for name in METHODS if weighs_by_size_or_equally(name)
    }


def test_equal_sizes_make_fair_and_size_weights_equal():
    ends = [
        played(config("fedavg", method={"weights": how}), federation(EQUAL)).server.params for how in ("size", "equal")
    ]
    same(*ends)


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
