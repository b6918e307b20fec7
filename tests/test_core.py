from __future__ import annotations

import pytest
import torch

from protofed.contract import checked
from protofed.core import Batch, Loss, Method, Site, Weights, average, cross_entropy
from protofed.methods import METHODS
from toys import net


def test_average_weighs_by_share():
    parts = [{"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([4.0, 8.0])}]
    assert average(parts, [2, 1])["w"].tolist() == [2, 4]


def test_average_of_idle_clients_is_the_plain_one():
    assert average([{"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}], [0, 0])["w"].tolist() == [2]


def test_average_keeps_integer_counters_integer():
    mixed = average([{"n": torch.tensor(3)}, {"n": torch.tensor(6)}], [1, 1])["n"]
    assert mixed.dtype == torch.int64
    assert mixed.item() == 4  # 4.5, rounded to even


def test_padding_does_not_count_in_cross_entropy():
    logits = torch.tensor([[2.0, 0.0], [0.0, 5.0]])
    both = Batch(torch.zeros(2), torch.tensor([0, 0]), torch.tensor([1.0, 0.0]))
    assert cross_entropy(logits, both).item() == pytest.approx(0.126928, abs=1e-6)  # log(1 + e^-2)


def test_batch_of_padding_has_loss_zero_not_nan():
    empty = Batch(torch.zeros(1), torch.tensor([0]), torch.tensor([0.0]))
    assert cross_entropy(torch.tensor([[1.0, 2.0]]), empty).item() == 0


def test_what_hooks_return_is_contiguous_and_sorted_as_it_is_after_a_message():
    """Another layout or order may round differently: runs with workers or resumed ones would have other bits."""
    rows = {"b": torch.ones(2), "a": Weights({"w": torch.arange(6.0).reshape(2, 3).T, "c": torch.ones(1)})}
    found = checked(METHODS["fedavg"](), "keep", rows)
    assert found["a"].params["w"].is_contiguous()
    assert torch.equal(found["a"].params["w"], rows["a"].params["w"])
    assert (list(found), list(found["a"].params)) == (["a", "b"], ["c", "w"])


def test_loss_sums_its_terms():
    assert Loss(a=torch.tensor(1.0), b=torch.tensor(2.5)).total.item() == 3.5


def test_sites_draw_by_seed_purpose_round_and_client():
    def draw(purpose: str = "x", **changes: int) -> float:
        where = {"seed": 0, "round": 1, "client": 2, **changes}
        return torch.rand((), generator=Site(net(), clients=3, **where).generator(purpose)).item()

    assert draw() == draw()
    assert len({draw(), draw("y"), draw(seed=1), draw(round=2), draw(client=1)}) == 5


def test_method_without_receive_says_so():
    with pytest.raises(TypeError, match="define receive"):
        Method().receive((), ())


def test_every_method_declares_its_messages():
    for method in METHODS.values():
        assert set(method.types()) == {"server", "down", "up", "kept"}
