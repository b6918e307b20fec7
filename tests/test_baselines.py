"""The baselines by hand, and what each becomes at the ends of its options."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args, get_type_hints

import pytest
import torch

from protofed.core import Batch, Upload, Weights, average_uploads
from protofed.engines.scoring import tally
from protofed.experiment.members import Members
from protofed.methods import METHODS
from protofed.methods.fedatt import FedAtt
from protofed.methods.fedper import FedPer
from protofed.methods.fedprox import FedProx
from protofed.methods.fedrep import FedRep
from protofed.methods.fesem import Centres, FeSEM, WeightsAndClasses
from protofed.net import Net, selected
from protofed.nets.cnn import Cnn
from protofed.training import take_part
from toys import config, everything, federation, figures, net, played

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


def test_fedprox_with_a_constant_term_logs_it_and_is_fedavg():
    runner = played(config("fedprox", method={"mu": 50.0, "term": "constant"}), federation())
    average = played(config("fedavg"), federation())
    same(everything(runner), everything(average))
    assert all(row["loss"]["proximal"] > 0 for row in runner.rounds)
    assert [row["loss"]["supervised"] for row in runner.rounds] == [row["loss"]["supervised"] for row in average.rounds]
    assert not torch.equal(
        played(config("fedprox", method={"mu": 5.0}), federation()).server.params["head.bias"],
        average.server.params["head.bias"],
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


def test_clients_without_steps_stay_with_their_centre_and_make_no_cluster():
    """The idle clients 0 and 1 have the server's weights, 0. k-means over the others gives the centres 4 and 8."""
    server = FeSEM(centres=2).start(SimpleNamespace(fresh_params=lambda: {"body.w": torch.zeros(1)}, clients=5))
    sent = uploads(*(weights(value) for value in (0.0, 0.0, 4.0, 8.0, 8.0)))
    sent = [upload._replace(steps=int(upload.client > 1)) for upload in sent]
    after = FeSEM(centres=2).aggregate(SITE, server, sent)
    assert after.member[:2].tolist() == [0, 0]
    assert after.member[3] == after.member[4] != after.member[2]
    both = {int(after.member[2]): [4.0], int(after.member[3]): [8.0, 8.0]}
    both[0] = [0.0, 0.0, *both[0]]  # as in FedAvg, idle clients count in the mean of their centre
    for centre, values in both.items():
        assert after.models[str(centre)]["body.w"].item() == pytest.approx(sum(values) / len(values))


def test_clients_without_examples_have_no_weight():
    """(2 + 4) / 2 with equal weights, whatever the two clients without examples sent; by size (2 + 3 * 4) / 4."""
    sent = uploads(*(weights(value) for value in (2.0, 9.0, 4.0, 9.0)), sizes=(1, 0, 3, 0))
    assert average_uploads(sent, equal=True)["body.w"].item() == 3
    assert average_uploads(sent)["body.w"].item() == 3.5
    empty = [upload._replace(num_examples=0) for upload in sent]
    assert average_uploads(empty, equal=True)["body.w"].item() == 6  # nobody has any: the plain mean


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


def test_fesem_by_number_of_classes():
    """1, 2, 3 and 6 classes: the mean is 3, which belongs to the second group."""
    server = Centres({"0": weights(7.0).params, "1": weights(8.0).params}, torch.zeros(5, dtype=torch.long))
    sent = uploads(weights(1.0), weights(3.0), weights(4.0), weights(10.0), sizes=(3, 1, 1, 2))
    sent = [
        upload._replace(message=WeightsAndClasses(upload.message.params, torch.tensor([float(count)])))
        for upload, count in zip(sent, (1, 2, 3, 6), strict=True)
    ]
    after = FeSEM(assign="classes", weights="equal").aggregate(SITE, server, sent)
    assert after.member.tolist() == [0, 0, 1, 1, 0]  # client 4 has sent nothing and stays
    assert [after.models[k]["body.w"].item() for k in "01"] == [2, 7]
    by_size = FeSEM(assign="classes").aggregate(SITE, server, sent)
    assert [by_size.models[k]["body.w"].item() for k in "01"] == [1.5, 8]  # (3 * 1 + 3) / 4, (4 + 2 * 10) / 3
    alone = FeSEM(assign="classes").aggregate(SITE, server, sent[:1])
    assert alone.member.tolist() == [1, 0, 0, 0, 0]  # it has the mean, its own number
    assert alone.models["0"]["body.w"].item() == 7


def test_fesem_by_number_of_classes_runs_with_two_models():
    runner = played(config("fesem", method={"assign": "classes"}), federation())
    assert sorted(runner.server.models) == ["0", "1"]
    # 3, 2, 1, 0, 1 and 2 classes: the mean is 1.5
    assert runner.server.member.tolist() == [1, 1, 0, 0, 0, 1]
    sent, plain = (
        played(config("fesem", 1, method=own), federation()).rounds[0] for own in ({"assign": "classes"}, {})
    )
    assert sent["up_params"] == plain["up_params"] + 6


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
