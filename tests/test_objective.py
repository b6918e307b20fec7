"""FedProto's global objective, Eq. (5), by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import protofed
from protofed.core import Prototypes
from protofed.errors import UserError
from protofed.examples import IGNORED
from protofed.measures.objective import prototype_term
from protofed.measures.on_demand import measure
from test_pixel_runs import squares
from toys import bank

# Class 0: client 0 has 1 example at (4, 0), client 1 has 3 at (0, 2), and the global prototype is (1, 2): squared distances
# 13 and 1, weights 1/4 and 3/4. Class 1 has no global prototype. Class 2: client 0 alone, at distance 5.
CLIENTS = [
    bank({0: [4.0, 0.0], 2: [0.0, 0.0]}, {0: 1, 2: 2}),
    bank({0: [0.0, 2.0], 1: [1.0, 1.0]}, {0: 3, 1: 5}),
]
SERVER = bank({0: [1.0, 2.0], 2: [3.0, 4.0]}, {0: 4, 2: 2})


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("squared", [13 / 4 + 3 / 4, 0, 25]),
        ("mse", [(13 / 4 + 3 / 4) / 2, 0, 25 / 2]),
        ("l2", [13**0.5 / 4 + 3 / 4, 0, 5]),
    ],
)
def test_the_second_term_weights_each_client_by_its_share_of_the_class(kind, expected):
    assert prototype_term(CLIENTS, SERVER, kind).tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("options", [{"pull": 0.5}, {"pull": 2.0, "distance": "l2", "outputs": "own", "send": "own"}])
def test_the_measure_has_both_terms_on_the_training_examples(options):
    table = {"run": {"rounds": 3}, "data": {"clients": 4, "limit": 300}, "method": options}
    result = protofed.run(table)
    rows = measure(result, ["objective"])["objective"].rows
    members, prototypes = result.state.members, result.prototypes
    total, losses, pulled = sum(map(len, members.train)), 0.0, 0.0
    class_sizes = sum(train.labels.bincount(minlength=10) for train in members.train)
    for client, train in enumerate(members.train):
        model = result.state.model(client)
        x, y = train.take(torch.arange(len(train)))
        with torch.no_grad():
            z = model.net.embed(model.params, x)
            losses += len(train) / total * F.cross_entropy(model.compute_scores(x)["head"], y).item()
        for label in y.unique().tolist():
            difference = z[y == label].mean(0) - prototypes.mean[label, 0]
            apart = difference.norm() if "distance" in options else difference.square().mean()
            pulled += (y == label).sum().item() / class_sizes[label].item() * apart.item()
    assert rows["all"]["supervised"] == pytest.approx(losses, rel=1e-4)
    assert rows["all"]["distance"] == pytest.approx(pulled, rel=1e-4)
    assert rows["all"]["objective"] == pytest.approx(losses + options["pull"] * pulled, rel=1e-4)
    by_class = [row for name, row in rows.items() if name.startswith("class ")]
    assert sum(row["distance"] for row in by_class) == pytest.approx(pulled, rel=1e-4)
    assert [row["examples"] for row in by_class] == class_sizes.tolist()
    assert (rows["all"]["examples"], rows["all"]["clients"]) == (total, 4)


def test_the_loss_of_pixels_is_the_mean_over_those_that_have_a_label():
    federation = protofed.Federation([squares(8, seed) for seed in range(2)])
    table = {"run": {"rounds": 1}, "net": {"name": "unet", "channels": [4, 8]}, "train": {"batch": 4}}
    result = federation.run(table)
    measured = measure(result, ["objective"])["objective"]
    losses, embeddings = [], 0
    for client, train in enumerate(result.state.members.train):
        model = result.state.model(client)
        x, y = train.take(torch.arange(len(train)))
        with torch.no_grad():
            scores = model.compute_scores(x)["head"]
        losses.append(
            F.cross_entropy(scores, y.flatten(), ignore_index=IGNORED, reduction="none")[y.flatten() != IGNORED]
        )
        embeddings += int((y[:, ::2, ::2] != IGNORED).sum())
    rows = measured.rows
    assert rows["all"]["supervised"] == pytest.approx(torch.cat(losses).mean().item(), rel=1e-4)
    assert rows["all"]["examples"] == embeddings  # maps of embeddings have half the side
    assert measured.notes[0].startswith("The examples are labelled pixels: ")


def test_training_lowers_the_objective_and_other_methods_have_none():
    def objective(rounds: int) -> float:
        result = protofed.run({"run": {"rounds": rounds}, "data": {"clients": 4, "limit": 300}})
        return measure(result, ["objective"])["objective"].rows["all"]["objective"]

    assert objective(15) < 0.5 * objective(1)
    with pytest.raises(
        UserError, match=r"objective is FedProto's Eq. .5., but this is a run of local. Use a run of fed"
    ):
        measure(protofed.run({"run": {"rounds": 1}, "method": {"name": "local"}}), ["objective"])


def test_a_class_that_nobody_has_counts_nothing():
    nobody = [Prototypes.empty(3, 2), Prototypes.empty(3, 2)]
    assert prototype_term(nobody, SERVER, "l2").tolist() == [0, 0, 0]
