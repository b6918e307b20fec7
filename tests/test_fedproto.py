"""FedProto's equations by hand; Eq. (3), (4) and (6) are in test_prototypes.py."""

from __future__ import annotations

from math import e, log
from typing import get_args

import pytest
import torch

from protofed.core import Batch, Prototypes, Trained, Upload
from protofed.engines.loop import Loop
from protofed.engines.stacked import Stacked
from protofed.errors import UserError
from protofed.messages import message_size
from protofed.methods.fedproto import Bank, BankWithHolders, FedProto, KeptWithClasses
from protofed.methods.parts.distances import Distance
from protofed.methods.parts.distances import distance as measure_distance
from toys import LABELS, bank, config, everything, federation, played, played_on

DISTANCES = get_args(Distance)


class Identity:
    """A net whose embedding is its input and whose logits are zeros."""

    classes, dim = 3, 2

    def __call__(self, params, x):
        return x, torch.zeros(len(x), 3)

    def match(self, batch, z):
        return batch


# Three samples: two of class 0, (4, 0) and (0, 2); one of class 1, (1, 1). Global prototypes: class 0 at (1, 2), class 2
# at (9, 9); class 1 has none yet. The means of the batch: class 0 at (2, 1), class 1 at (1, 1).
BATCH = Batch(torch.tensor([[4.0, 0.0], [0.0, 2.0], [1.0, 1.0]]), torch.tensor([0, 0, 1]), torch.ones(3))
GLOBAL = Bank(bank({0: [1.0, 2.0], 2: [9.0, 9.0]}))


def pull(batch: Batch = BATCH, down: Bank = GLOBAL, **options: object) -> float:
    loss = FedProto(**options).loss(Identity(), {}, batch, down, ())
    return loss.terms["pull"].item()


@pytest.mark.parametrize(
    ("distance", "per_sample", "between_means"),
    [
        ("mse", (13 / 2 + 1 / 2) / 3, 2 / 2),  # squared norms: 3^2 + 2^2, 1^2 + 0^2; the means: 1^2 + 1^2
        ("squared", (13 + 1) / 3, 2),
        ("l2", (13**0.5 + 1) / 3, 2**0.5),
        ("l1", (5 + 1) / 3, 2),
        # As histograms the samples are (1, 0) and (0, 1), the prototype (1/3, 2/3): of the two cumulative sums the first
        # differ by 2/3 and 1/3, the second by nothing. The batch's mean is (2/3, 1/3).
        ("emd", (1 / 3 + 1 / 6) / 3, 1 / 6),
        # The target is softmax(1, 2) = (1, e) / (1 + e). The second unit of (4, 0) is 4 below its first, that of the mean
        # (2, 1) is 1 below, and the first unit of (0, 2) is 2 below its second: -log of the larger probability is
        # log(1 + e^-4), log(1 + e^-1), log(1 + e^-2), and that of the smaller one larger by 4, 1, 2.
        (
            "cross_entropy",
            (log(1 + e**-4) + 4 * e / (1 + e) + log(1 + e**-2) + 2 / (1 + e)) / 3,
            log(1 + e**-1) + e / (1 + e),
        ),
        ("relu_l2", (13**0.5 + 1) / 3, 2**0.5),  # nothing is negative here: the same as l2
    ],
)
def test_eq7_and_eq8_by_hand(distance, per_sample, between_means):
    tolerance = 2e-3 if distance == "emd" else 1e-5  # the histograms have a small floor
    assert pull(distance=distance) == pytest.approx(per_sample, rel=tolerance)
    assert pull(distance=distance, between="means") == pytest.approx(between_means, rel=tolerance)


def test_eq7_is_cross_entropy_plus_lambda_times_the_distance():
    loss = FedProto(pull=0.5).loss(Identity(), {}, BATCH, GLOBAL, ())
    assert loss.terms["supervised"].item() == pytest.approx(1.098612, abs=1e-6)  # log 3
    assert loss.total.item() == pytest.approx(1.098612 + 0.5 * 7 / 3, rel=1e-6)


@pytest.mark.parametrize("between", ["samples", "means"])
@pytest.mark.parametrize("distance", DISTANCES)
def test_unseen_class_exerts_no_pull(distance, between):
    nothing = Bank(Prototypes.empty(3, 2))
    assert pull(down=nothing, distance=distance, between=between) == 0


@pytest.mark.parametrize("between", ["samples", "means"])
@pytest.mark.parametrize("distance", DISTANCES)
def test_padding_exerts_no_pull(distance, between):
    padded = Batch(
        torch.cat([BATCH.x, torch.full((2, 2), 7.0)]), torch.tensor([0, 0, 1, 0, 2]), torch.tensor([1.0, 1, 1, 0, 0])
    )
    options = {"distance": distance, "between": between}
    assert pull(padded, **options) == pytest.approx(pull(**options), rel=1e-6)


@pytest.mark.parametrize("distance", DISTANCES)
def test_gradient_at_distance_zero_is_finite(distance):
    z = torch.tensor([[1.0, 2.0], [0.0, 0.0]], requires_grad=True)
    measure_distance(z, z.detach().clone(), distance).sum().backward()
    assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize("distance", DISTANCES)
def test_gradient_of_a_dying_embedding_stays_bounded(distance):
    z = torch.full((1, 50), 1e-7, requires_grad=True)
    measure_distance(z, torch.linspace(0, 1, 50).unsqueeze(0), distance).sum().backward()
    assert z.grad.norm() < 100


NORMS = ["l2", "l1", "relu_l2"]


@pytest.mark.parametrize("distance", NORMS)
def test_a_norm_is_smooth_at_zero_by_hand(distance):
    z = torch.tensor([1.05, 1.0], requires_grad=True)
    apart = measure_distance(z, torch.ones(2), distance)  # d = 0.05, half of the width 0.1
    assert apart.item() == pytest.approx(0.05**2 * 0.15 / 0.1**2, rel=1e-5)  # 0.0375
    apart.backward()
    assert z.grad.tolist() == pytest.approx([1.25, 0], rel=1e-4)  # (4 w d - 3 d^2) / w^2


@pytest.mark.parametrize("distance", [*NORMS, "emd"])
def test_rounding_around_zero_does_not_become_a_gradient(distance):
    """The slope at d is at most 4 d / w: 8e-7 for the longest step here, 2e-8, and 8e-6 for emd, of width 0.01.

    Distances that are not smoothed have gradients of length 0.1 (emd) to 2 (l1) here.
    """
    prototype = torch.ones(4, dtype=torch.double)
    for direction in ([1, 0, 0, 0], [0, -1, 0, 0], [1, 1, 1, 1], [1, -1, 1, -1]):
        z = (prototype + 1e-8 * torch.tensor(direction)).requires_grad_()
        measure_distance(z, prototype, distance).backward()
        assert z.grad.norm() < 1e-5


@pytest.mark.parametrize("distance", NORMS)
def test_a_norm_from_the_width_on_is_the_norm_to_the_last_bit(distance):
    b = torch.zeros(6, 3)
    a = torch.tensor([[0.1], [0.11], [0.5], [1.0], [30.0], [1e6]]) * torch.ones(3)
    expected = a.clone().requires_grad_()
    a.requires_grad_()
    norm = expected.abs().sum(-1) if distance == "l1" else torch.linalg.vector_norm(expected, dim=-1)
    got = measure_distance(a, b, distance)
    assert torch.equal(got, norm)
    got.sum().backward()
    norm.sum().backward()
    assert torch.equal(a.grad, expected.grad)


@pytest.mark.parametrize("between", ["samples", "means"])
@pytest.mark.parametrize("distance", [*NORMS, "emd"])
def test_a_sole_holders_fresh_prototype_gives_the_same_run_on_every_engine(distance, between):
    """Client 2 has one example, the only one of its class: its prototype is its embedding, up to rounding."""
    options = {"distance": distance, "between": between, "prototypes": "fresh"}
    experiment = config("fedproto", rounds=6, train={"epochs": 2, "lr": 0.01}, method=options)
    labels = [[0, 1] * 6, [0, 1] * 5, [2], [0, 1] * 3]
    loop, stacked = (everything(played_on(kind, experiment, federation(labels))) for kind in (Loop, Stacked))
    torch.testing.assert_close(stacked, loop, rtol=1e-4, atol=1e-4)


def test_relu_l2_compares_the_positive_parts():
    a, b = torch.tensor([-3.0, 4.0, -1.0], requires_grad=True), torch.tensor([-7.0, 1.0, 4.0])
    apart = measure_distance(a, b, "relu_l2")  # (0, 4, 0) and (0, 1, 4)
    assert apart.item() == pytest.approx(5, rel=1e-6)
    apart.backward()
    assert a.grad.tolist() == pytest.approx([0, 3 / 5, 0], rel=1e-6)  # units that are negative are not pulled


def test_cross_entropy_is_smallest_and_flat_at_the_prototype():
    z = torch.tensor([1.0, 2.0], requires_grad=True)
    at_prototype = measure_distance(z, torch.tensor([1.0, 2.0]), "cross_entropy")
    p = 1 / (1 + e)  # the entropy of softmax(1, 2) = (p, 1 - p)
    assert at_prototype.item() == pytest.approx(-p * log(p) - (1 - p) * log(1 - p), rel=1e-6)
    at_prototype.backward()
    assert z.grad.tolist() == pytest.approx([0, 0], abs=1e-6)


def test_emd_of_nothing_positive_is_an_even_histogram():
    assert measure_distance(torch.tensor([[-1.0, -5.0]]), torch.tensor([[1.0, 1.0]]), "emd").item() == pytest.approx(
        0, abs=1e-6
    )


def trained(labels: list[int], method: FedProto, client: int = 0) -> tuple[Trained, Bank]:
    """A client after a round, and what it sends."""
    from protofed.training import TrainSection, train_client

    members = federation([labels] * (client + 1))
    one, down = members.client(0, 0, client), Bank(Prototypes.empty(3, 5))
    kept = method.join(one)
    outcome = train_client(method, one, one.data, kept.params, down, kept, method.phases(1), TrainSection(batch=4))
    made = Trained(
        **vars(one),
        kept=kept,
        down=down,
        start=kept.params,
        params=outcome.params,
        lr=0.1,
        steps=outcome.steps,
        observed=outcome.observed,
    )
    return made, method.upload(made)


def test_fresh_prototypes_are_the_class_means_after_training():
    client, sent = trained([0, 0, 2, 2], FedProto(prototypes="fresh"))
    z, y = client.features()
    torch.testing.assert_close(sent.prototypes.mean[0, 0], z[y == 0].mean(0))
    assert sent.prototypes.support[:, 0].tolist() == [2, 0, 2]


def test_gathered_prototypes_come_from_the_embeddings_before_each_step():
    client, sent = trained([0, 0, 2, 2], FedProto(prototypes="gathered"))  # one batch: all embeddings are the start's
    z, y = client.features(before=True)
    torch.testing.assert_close(sent.prototypes.mean[2, 0], z[y == 2].mean(0))
    assert sent.prototypes.support[:, 0].tolist() == [2, 0, 2]


@pytest.mark.parametrize("prototypes", ["fresh", "gathered"])
@pytest.mark.parametrize(("labels", "support"), [([], [0, 0, 0]), ([1], [0, 1, 0]), ([2] * 6, [0, 0, 6])])
def test_empty_single_sample_and_single_class_clients(labels, support, prototypes):
    _, sent = trained(labels, FedProto(prototypes=prototypes))
    assert sent.prototypes.support[:, 0].tolist() == support
    assert torch.isfinite(sent.prototypes.mean).all()


def test_class_that_nobody_sends_keeps_its_prototype():
    method = FedProto()
    server = BankWithHolders(bank({0: [1.0, 1.0], 1: [5.0, 5.0]}), torch.tensor([[0.0, 1, 0], [-1, -1, -1]]))
    updated = method.aggregate(None, server, [Upload(0, 1, 1, 1.0, Bank(bank({0: [3.0, 3.0]})))])
    assert updated.prototypes.mean[:, 0].tolist() == [[3, 3], [5, 5], [0, 0]]
    assert updated.holds.tolist() == [[1, 1, 0], [-1, -1, -1]]  # class 1 was sent in an earlier round


def test_own_sends_a_client_the_prototypes_of_its_classes():
    server = BankWithHolders(
        bank({0: [1.0, 1.0], 1: [5.0, 5.0], 2: [9.0, 9.0]}), torch.tensor([[1.0, 0, 0], [-1, -1, -1], [0, 0, 0]])
    )
    sent = [FedProto(send="own").broadcast(server, client).prototypes for client in range(4)]
    assert [part.support[:, 0].tolist() for part in sent] == [
        [1, 0, 0],  # what it has uploaded
        [1, 1, 1],  # no upload of it is known: it gets all
        [0, 0, 0],  # it has uploaded that it has no class
        [1, 1, 1],  # it joins after the run
    ]
    assert sent[0].mean[:, 0].tolist() == [[1, 1], [0, 0], [0, 0]]
    assert [message_size(Bank(part)).params for part in sent] == [2, 6, 0, 6]
    assert all(FedProto().broadcast(server, client).prototypes is server.prototypes for client in range(4))


@pytest.mark.parametrize("sample", [1.0, 0.5])
@pytest.mark.parametrize("engine", [Loop, Stacked])
@pytest.mark.parametrize("options", [{}, {"between": "means", "prototypes": "fresh"}])
def test_sending_own_classes_only_changes_what_is_sent_and_no_bit_of_the_result(options, engine, sample):
    every, own = (
        played_on(engine, config("fedproto", 4, run={"sample": sample}, method={"send": send, **options}), federation())
        for send in ("all", "own")
    )
    torch.testing.assert_close(everything(own), everything(every), rtol=0, atol=0)
    for row, reference in zip(own.rounds, every.rounds, strict=True):
        assert all(row[key] == reference[key] for key in row if not key.startswith(("down_", "seconds")))
        assert reference.keys() - row.keys() == {"accuracy_prototype_all", "accuracy_prototype_all_std"}
    if sample == 1.0:
        held = 3 + 2 + 1 + 0 + 1 + 2
        assert [row["down_params"] for row in own.rounds] == [0, held * 5, held * 5, held * 5]
        assert [row["down_params"] for row in every.rounds] == [0, 90, 90, 90]
    else:
        assert sum(row["down_params"] for row in own.rounds) < sum(row["down_params"] for row in every.rounds)


def test_the_nearest_of_all_prototypes_needs_all_prototypes():
    with pytest.raises(UserError, match=r'method.nearest: got "all", but with method.send = "own" .* Use method.send'):
        played(config("fedproto", method={"send": "own", "nearest": "all"}), federation())


def test_eq4_among_own_classes_or_all():
    x = torch.tensor([[8.0, 8.0], [0.0, 0.0]])  # nearest of all: class 2, class 0
    own = KeptWithClasses({}, torch.tensor([1.0, 1.0, 0.0]))  # the client has classes 0 and 1
    scores = FedProto(nearest="own").predict(Identity(), {}, x, GLOBAL, own)
    assert scores["prototype"].argmax(-1).tolist() == [0, 0]
    assert scores["prototype_all"].argmax(-1).tolist() == [2, 0]
    swapped = FedProto(nearest="all").predict(Identity(), {}, x, GLOBAL, own)
    assert torch.equal(swapped["prototype"], scores["prototype_all"])
    assert torch.equal(swapped["prototype_own"], scores["prototype"])


@pytest.mark.parametrize(
    "options", [{}, {"distance": "l2"}, {"between": "means"}, {"prototypes": "fresh"}, {"distance": "emd"}]
)
def test_without_pull_it_is_local_exactly(options):
    members = federation()
    ours, alone = (
        played(config(name, method=more), members)
        for name, more in (("fedproto", {"pull": 0, **options}), ("local", {}))
    )
    assert [row["accuracy_head"] for row in ours.rounds] == [row["accuracy_head"] for row in alone.rounds]
    for client in range(len(LABELS)):
        mine, theirs = ours.engine.state()[client].params, alone.engine.state()[client].params
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_pull_brings_the_clients_prototypes_together():
    def spread(strength: float) -> float:
        runner = played(
            config("fedproto", rounds=15, method={"pull": strength, "prototypes": "fresh"}),
            federation([[0, 1, 2] * 4] * 4),
        )
        seen = [Prototypes.of(*_features(runner, client), classes=3).mean for client in range(4)]
        return torch.stack(seen).var(0).sum().item()

    assert spread(5.0) < 0.5 * spread(0.0)


def _features(runner, client):
    return runner.members.nets[client].features(runner.engine.state()[client].params, runner.members.train[client])


def test_padding_does_not_count_in_the_supervised_term():
    padded = Batch(BATCH.x, BATCH.y, torch.tensor([1.0, 1.0, 0.0]))

    class Sure(Identity):
        def __call__(self, params, x):
            return x, torch.tensor([[9.0, 0, 0], [9.0, 0, 0], [0, 0, 9.0]])  # right, right, wrong but padding

    assert FedProto().loss(Sure(), {}, padded, GLOBAL, ()).terms["supervised"].item() < 0.001


def test_clients_remember_their_classes():
    runner = played(config("fedproto"), federation())
    kept = [runner.engine.state()[client].classes.tolist() for client in range(len(LABELS))]
    assert kept == [[1, 1, 1], [1, 1, 0], [0, 0, 1], [0, 0, 0], [0, 1, 0], [1, 0, 1]]


def test_what_travels_is_counted():
    runner = played(config("fedproto", rounds=2), federation())
    first, second = runner.rounds
    held = 3 + 2 + 1 + 0 + 1 + 2
    assert (first["up_params"], first["up_counts"], first["down_params"]) == (held * 5, held, 0)
    assert second["down_params"] == 6 * 3 * 5  # three classes to all six clients
    assert second["down_bytes"] == 6 * 4 * (3 * 5 + 3 + 3 + 3)


def test_clients_may_have_different_nets():
    from toys import net

    nets = [net(hidden=6), net(hidden=9)] * 3
    state = everything(played(config("fedproto"), federation(nets=nets)))
    assert state["kept/1/params/body.0.weight"].shape == (9, 4)
    assert state["server/prototypes/mean"].shape == (3, 5)


class Sloped(Identity):
    """A net whose logits are log 1, log 2 and log 5 for every input: probabilities 1/8, 2/8 and 5/8."""

    def __call__(self, params, x):
        return x, torch.tensor([1.0, 2.0, 5.0]).log().expand(len(x), 3)


def test_a_head_with_own_outputs_by_hand():
    """The client has classes 0 and 1: the third output does not exist, and the probabilities are 1/3 and 2/3."""
    kept, method = KeptWithClasses({}, torch.tensor([1.0, 1.0, 0.0])), FedProto(outputs="own")
    supervised = method.loss(Sloped(), {}, BATCH, GLOBAL, kept).terms["supervised"]  # labels 0, 0, 1
    assert supervised.item() == pytest.approx((log(3) + log(3) + log(3 / 2)) / 3, rel=1e-6)
    every = FedProto().loss(Sloped(), {}, BATCH, GLOBAL, kept).terms["supervised"]
    assert every.item() == pytest.approx((log(8) + log(8) + log(4)) / 3, rel=1e-6)
    x = torch.zeros(2, 2)
    assert method.predict(Sloped(), {}, x, GLOBAL, kept)["head"].argmax(-1).tolist() == [1, 1]
    assert FedProto().predict(Sloped(), {}, x, GLOBAL, kept)["head"].argmax(-1).tolist() == [2, 2]


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_outputs_that_do_not_exist_never_train(engine):
    experiment = config("fedproto", method={"outputs": "own", "pull": 0.5})
    members = federation()
    kept = played_on(engine, experiment, members).engine.state()
    for client, labels in enumerate(LABELS):
        start = experiment.method.join(members.client(0, 0, client)).params
        weight, bias = (kept[client].params[name] != start[name] for name in ("head.weight", "head.bias"))
        trained = [label in labels and len(set(labels)) > 1 for label in range(3)]  # one class: the loss is always 0
        assert weight.any(-1).tolist() == trained
        assert bias.tolist() == trained


def test_own_outputs_are_the_same_on_both_engines_and_in_the_exported_module():
    import protofed

    table = {"run": {"rounds": 3}, "data": {"clients": 4, "limit": 240}, "method": {"outputs": "own"}}
    loop, stacked = (protofed.run({**table, "engine": {"name": name}}) for name in ("loop", "stacked"))
    x = torch.linspace(0, 16, 64 * 9).reshape(9, 1, 8, 8)
    for client in range(4):
        torch.testing.assert_close(
            stacked.model(client).state_dict(), loop.model(client).state_dict(), rtol=1e-4, atol=1e-4
        )
        data = loop.state.members.train[client]
        with torch.no_grad():
            answers = loop.model(client)(data.normalised(x)).argmax(1)
        assert answers.tolist() == loop.predict(x.numpy(), client)["label"].tolist()
        assert set(answers.tolist()) <= set(data.labels.tolist())


def test_own_outputs_need_a_bias():
    import protofed

    with pytest.raises(UserError, match=r'method.outputs: "own" needs a head with a bias, but that of mlp'):
        protofed.run({"data": {"clients": 2}, "net": {"bias": False}, "method": {"outputs": "own"}})
