from __future__ import annotations

import pytest
import torch

from protofed.core import Upload, Weights
from protofed.errors import UserError
from protofed.methods.fedavg import FedAvg
from toys import config, federation, figures, net, played


def uploads() -> list[Upload]:
    return [
        Upload(0, 30, 1, 1.0, Weights({"w": torch.tensor([0.0])})),
        Upload(1, 10, 1, 1.0, Weights({"w": torch.tensor([8.0])})),
    ]


@pytest.mark.parametrize(("weights", "expected"), [("size", 2.0), ("equal", 4.0)])
def test_weights_by_size_or_equal(weights, expected):
    assert FedAvg(weights=weights).aggregate(None, None, uploads()).params["w"].item() == expected


def test_all_clients_are_evaluated_with_the_servers_model():
    runner = played(config("fedavg"), federation())
    assert runner.rounds[-1]["accuracy_global"] is not None
    assert figures(runner)["accuracy"]["prototype"] is None


def test_one_client_makes_it_local_from_the_same_start():
    members = federation([[0, 1, 2] * 5])
    shared = played(config("fedavg", rounds=1), members)
    from protofed.methods.local import Local
    from protofed.training import TrainSection, train_client

    start = FedAvg().start(members.server(0, 0)).params
    alone = train_client(
        Local(),
        members.client(0, 0, 0),
        members.train[0],
        start,
        (),
        (),
        Local().phases(1),
        TrainSection(batch=4, lr=0.1),
    )
    torch.testing.assert_close(shared.server.params, alone.params, rtol=0, atol=0)


def test_mixed_nets_are_refused_with_the_standard_error():
    nets = [net("toy(hidden=6)", hidden=6)] * 3 + [net("toy(hidden=9)", hidden=9)] * 3
    with pytest.raises(UserError) as caught:
        federation(nets=nets).check_nets("fedavg", FedAvg())
    assert str(caught.value) == (
        "fedavg cannot average nets of different shapes: clients 0-2 have toy(hidden=6), 3-5 toy(hidden=9). "
        "Use one net, or a method that shares prototypes (fedproto)."
    )


def test_embeddings_of_different_sizes_are_refused_by_fedproto():
    from protofed.methods.fedproto import FedProto

    nets = [net("a", dim=5)] * 5 + [net("b", dim=7)]
    with pytest.raises(UserError, match=r"clients 0-4 have a of dim 5, 5 b of dim 7. Give every net the same dim"):
        federation(nets=nets).check_nets("fedproto", FedProto())


def test_two_rounds_of_two_unequal_clients_by_hand():
    """The whole loop against torch's own optimiser: sizes as weights, decay by round, and nothing but one full batch."""
    members = federation([[0, 1, 2] * 3, [0, 1, 2]])
    sections = {"train": {"batch": 99, "lr": 0.2, "decay": 0.5, "momentum": 0.9, "epochs": 2}}
    runner = played(config("fedavg", rounds=2, **sections), members)
    toy, weights = members.nets[0], FedAvg().start(members.server(0, 0)).params
    for round in range(2):
        trained = []
        for data in members.train:
            params = {name: value.clone().requires_grad_() for name, value in weights.items()}
            optimiser = torch.optim.SGD(params.values(), 0.2 * 0.5**round, momentum=0.9)
            for _ in range(2):
                optimiser.zero_grad()
                x, y = data.take(torch.arange(len(data)))
                torch.nn.functional.cross_entropy(toy(params, x)[1], y).backward()
                optimiser.step()
            trained.append(params)
        weights = {name: (0.75 * trained[0][name] + 0.25 * trained[1][name]).detach() for name in weights}
    torch.testing.assert_close(runner.server.params, weights, rtol=1e-5, atol=1e-6)
    correct = [
        (toy(weights, x)[1].argmax(-1) == y).float().mean().item()
        for x, y in ((t.take(torch.arange(len(t)))) for t in members.test)
    ]
    assert figures(runner)["accuracy"]["head"]["mean"] == pytest.approx(sum(correct) / 2)
    (balanced,) = members.balanced
    x, y = balanced.take(torch.arange(len(balanced)))
    assert runner.rounds[-1]["accuracy_global"] == pytest.approx(
        (toy(weights, x)[1].argmax(-1) == y).float().mean().item()
    )
    numbers = 2 * sum(value.numel() for value in weights.values())
    assert figures(runner)["cost"] == {
        "up_params": numbers,
        "down_params": numbers,
        "up_counts": 0,
        "up_bytes": 8 * numbers,
        "down_bytes": 8 * numbers,
    }
