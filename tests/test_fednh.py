"""FedNH's equations by hand: where prototypes start (1), the loss (2), class means (3), the smoothed update (4)."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from protofed.core import Batch, Upload, Weights
from protofed.errors import UserError
from protofed.methods.fednh import FedNH
from protofed.methods.parts.model_with_prototypes import ModelWithPrototypes
from protofed.methods.parts.sphere import cosine_range, orthonormal, search_directions, uniform
from protofed.net import Net
from toys import bank, config, federation, figures, played

HEAD = "head.out.weight"


@pytest.mark.parametrize(("classes", "dim"), [(2, 1), (3, 2), (4, 8), (10, 192), (17, 16)])
def test_eq1_up_to_one_more_class_than_dimensions_it_is_the_simplex(classes, dim):
    points = uniform(classes, dim, 0)
    assert points.norm(dim=1) == pytest.approx(1, abs=1e-6)
    assert cosine_range(points) == pytest.approx((-1 / (classes - 1),) * 2, abs=1e-6)


@pytest.mark.parametrize(
    ("classes", "dim", "largest"),
    [
        (6, 2, 0.5),  # a hexagon
        (8, 4, 0.0),  # up to 2 dim points: none nearer than a right angle
        (12, 3, 1 / 5**0.5),  # an icosahedron
    ],
)
def test_eq1_beyond_it_is_the_known_best(classes, dim, largest):
    points = uniform(classes, dim, 0)
    assert points.norm(dim=1) == pytest.approx(1, abs=1e-6)
    assert cosine_range(points)[1] == pytest.approx(largest, abs=1e-3)


@pytest.mark.slow
def test_eq1_a_hundred_classes_in_sixteen_dimensions():
    points = uniform(100, 16, 0)
    assert cosine_range(points)[1] <= 0.26
    angle = math.acos(cosine_range(points)[1])
    for start in range(3):  # other starts find no angle more than 1 % larger
        again = search_directions(100, 16, torch.Generator().manual_seed(start))
        assert math.acos(cosine_range(again)[1]) <= 1.01 * angle


def test_starts_are_functions_of_the_seed():
    assert torch.equal(uniform(5, 7, 1), uniform(5, 7, 1))
    assert not torch.equal(uniform(5, 7, 1), uniform(5, 7, 2))
    assert uniform(1, 3, 0).norm() == pytest.approx(1)
    rows = orthonormal(4, 6, 0)
    torch.testing.assert_close(rows @ rows.T, torch.eye(4))
    assert rows.is_contiguous()
    assert cosine_range(orthonormal(9, 4, 0))[1] < 1  # more cannot be orthonormal: directions at random


# Embeddings are inputs. Prototypes: class 0 at (1, 0), class 1 at (0, 1). The sample (3, 4) has the direction (0.6, 0.8).
EMBED = SimpleNamespace(embed=lambda params, x: x, linear_head=HEAD)
SITE = SimpleNamespace(net=EMBED)
W = torch.eye(2)


@pytest.mark.parametrize("learn", [True, False])
def test_eq2_by_hand(learn):
    method = FedNH(scale=2.0, learn_scale=learn)
    params = {HEAD: W, "head.out.bias": torch.tensor([9.0, 0.0])} | (
        {"method.scale": torch.tensor(2.0)} if learn else {}
    )
    batch = Batch(torch.tensor([[3.0, 4.0]]), torch.tensor([1]), torch.ones(1))
    loss = method.loss(EMBED, params, batch, None, ())
    expected = -math.log(math.exp(1.6) / (math.exp(1.2) + math.exp(1.6)))
    assert loss.total.item() == pytest.approx(expected, rel=1e-6)
    assert method.predict(EMBED, params, batch.x, None, ())["head"].tolist() == [pytest.approx([1.2, 1.6])]


def trained(z: list[list[float]], y: list[int]) -> SimpleNamespace:
    return SimpleNamespace(
        features=lambda: (torch.tensor(z), torch.tensor(y)),
        net=SimpleNamespace(classes=3),
        params={"body.w": torch.tensor([1.0]), HEAD: torch.zeros(3, 2), "method.scale": torch.tensor(5.0)},
    )


@pytest.mark.parametrize(("unit", "expected"), [(False, [0.5, 0.5]), (True, [0.5**0.5, 0.5**0.5])])
def test_eq3_by_hand(unit, expected):
    sent = FedNH(unit_means=unit).upload(trained([[2.0, 0.0], [0.0, 7.0], [0.0, 3.0]], [0, 0, 2]))
    assert sent.prototypes.mean[0, 0].tolist() == pytest.approx(expected)  # of (1, 0) and (0, 1)
    assert sent.prototypes.mean[2, 0].tolist() == [0, 1]
    assert sent.prototypes.support[:, 0].tolist() == [2, 0, 1]
    assert sorted(sent.params) == ["body.w", "method.scale"]  # the head stays


def moved(rho: float = 0.5, weights: str = "equal") -> torch.Tensor:
    """Prototypes (1, 0), (0, 1), (-1, 0). Client 0 has class 0 at (0, 1) once; client 1 at (0, -1) three times."""
    server = Weights({"body.w": torch.tensor([0.0]), HEAD: torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])})
    uploads = [
        Upload(0, 1, 1, 1.0, ModelWithPrototypes({"body.w": torch.tensor([2.0])}, bank({0: [0.0, 1.0]}, {0: 1}))),
        Upload(
            1,
            9,
            1,
            1.0,
            ModelWithPrototypes({"body.w": torch.tensor([6.0])}, bank({0: [0.0, -1.0], 1: [1.0, 0.0]}, {0: 3, 1: 6})),
        ),
    ]
    after = FedNH(rho=rho, weights=weights).aggregate(SITE, server, uploads)
    assert after.params["body.w"].item() == 4  # plainly averaged, whatever the sizes
    return after.params[HEAD]


def test_eq4_as_the_paper_weighs_by_hand():
    # class 0: the means cancel out. Class 1: 0.5 (0, 1) + 0.5 * 1/2 (1, 0), scaled to length 1.
    norm = math.hypot(0.25, 0.5)
    assert moved().tolist() == [pytest.approx([1, 0]), pytest.approx([0.25 / norm, 0.5 / norm]), pytest.approx([-1, 0])]


def test_eq4_as_the_code_weighs_by_hand():
    # class 0: (1 * (0, 1) + 3 * (0, -1)) / 4 = (0, -0.5), to length 1 (0, -1). Class 1: (1, 0), of its only holder.
    half = 0.5**0.5
    assert moved(weights="count").tolist() == [
        pytest.approx([half, -half]),
        pytest.approx([half, half]),
        pytest.approx([-1, 0]),
    ]
    # with rho = 0.8: 0.8 (1, 0) + 0.2 (0, -1) and 0.8 (0, 1) + 0.2 (1, 0), both of length sqrt(0.68)
    norm = math.sqrt(0.68)
    assert moved(0.8, "count")[:2].tolist() == [
        pytest.approx([0.8 / norm, -0.2 / norm]),
        pytest.approx([0.2 / norm, 0.8 / norm]),
    ]


@pytest.mark.parametrize("weights", ["equal", "count"])
def test_a_class_nobody_holds_keeps_its_prototype_and_all_stay_on_the_sphere(weights):
    members = federation([[0, 1] * 4, [1] * 5, [], [0]])
    runner = played(config("fednh", rounds=4, method={"weights": weights, "rho": 0.5}), members)
    first = FedNH().start(members.server(0, 0)).params
    last = runner.server.params
    name = runner.members.nets[0].linear_head
    assert last[name].norm(dim=1) == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(last[name][2], first[name][2])
    assert not torch.allclose(last[name][0], first[name][0], atol=1e-2)


def test_only_body_and_scale_train_and_a_bias_stays_zero():
    runner = played(config("fednh", method={"rho": 1.0}), federation())
    first, last = FedNH().start(runner.members.server(0, 0)).params, runner.server.params
    changed = {name for name in last if not torch.equal(first[name], last[name])}
    assert changed == {name for name in last if name.startswith(("body.", "method."))}
    assert not last[runner.members.nets[0].linear_head.replace("weight", "bias")].any()


def test_a_fixed_scale_is_not_sent():
    runner = played(config("fednh", method={"learn_scale": False, "scale": 30.0}), federation())
    assert "method.scale" not in runner.server.params


def test_it_sends_the_body_and_the_prototypes_of_held_classes():
    members = federation([[0, 1] * 4])
    runner = played(config("fednh", rounds=1), members)
    body = sum(value.numel() for name, value in runner.server.params.items() if name.startswith("body."))
    assert figures(runner)["cost"]["up_params"] == body + 1 + 2 * members.nets[0].dim


def test_a_net_whose_head_is_not_one_layer_is_refused():
    def build():
        return nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))

    with pytest.raises(
        UserError,
        match=r"This needs a head of one linear layer, but the head of deep has: Linear, ReLU, Linear\. Use another net",
    ):
        played(config("fednh"), federation(nets=[Net("deep", build, (4,), 3)] * 6))


def test_it_does_not_depend_on_the_order_of_clients():
    uploads = [
        Upload(
            n,
            3,
            1,
            1.0,
            ModelWithPrototypes({"body.w": torch.tensor([float(n)])}, bank({0: [0.6, 0.8], n % 2: [0.0, 1.0]})),
        )
        for n in range(4)
    ]
    server = Weights({"body.w": torch.zeros(1), HEAD: torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])})
    ends = [FedNH().aggregate(SITE, server, order).params for order in (uploads, uploads[::-1])]
    torch.testing.assert_close(ends[0], ends[1])


def test_its_prototypes_are_the_rows_of_the_head():
    runner = played(config("fednh", rounds=2), federation())
    found = runner.method.server_prototypes(runner.members.nets[0], runner.server)
    assert torch.equal(found.mean[:, 0], runner.server.params["head.weight"])
    assert found.support.tolist() == [[1], [1], [1]]
