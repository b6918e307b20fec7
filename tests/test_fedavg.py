from __future__ import annotations

import pytest
import torch

from protofed.core import Upload, Weights
from protofed.errors import UserError
from protofed.methods.fedavg import FedAvg
from toys import config, federation, net, played


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
    assert runner.summary()["accuracy"]["prototype"] is None


def test_one_client_makes_it_local_from_the_same_start():
    members = federation([[0, 1, 2] * 5])
    shared = played(config("fedavg", rounds=1), members)
    from protofed.local import Training, train
    from protofed.methods.local import Local

    start = FedAvg().start(members.server(0, 0)).params
    alone = train(
        Local(), members.client(0, 0, 0), members.train[0], start, (), (), Local().phases(1), Training(batch=4, lr=0.1)
    )
    torch.testing.assert_close(shared.server.params, alone.params, rtol=0, atol=0)


def test_mixed_nets_are_refused_with_the_standard_error():
    nets = [net("toy(hidden=6)", hidden=6)] * 3 + [net("toy(hidden=9)", hidden=9)] * 3
    with pytest.raises(UserError) as caught:
        federation(nets=nets).admit("fedavg", FedAvg())
    assert str(caught.value) == (
        "fedavg cannot average nets of different shapes: clients 0-2 have toy(hidden=6), 3-5 toy(hidden=9). "
        "Use one net, or a method that shares prototypes (fedproto)."
    )


def test_embeddings_of_different_sizes_are_refused_by_fedproto():
    from protofed.methods.fedproto import FedProto

    nets = [net("a", dim=5)] * 5 + [net("b", dim=7)]
    with pytest.raises(UserError, match=r"clients 0-4 have a of dim 5, 5 b of dim 7. Give every net the same dim"):
        federation(nets=nets).admit("fedproto", FedProto())
