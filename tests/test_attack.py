"""Attackers: who they are, what they send by hand, and what is reported about them."""

from __future__ import annotations

import json
import re
import runpy
import statistics
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import protofed
from protofed.core import Upload, Weights
from protofed.engines.loop import Loop
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.experiment.safeguards import attack_success
from protofed.methods.fedproto import Bank
from protofed.trust.attack import (
    corrupt_uploads,
    draw_attackers,
    poison_data,
    wanted_labels,
    with_trigger,
)
from protofed.trust.trust_sections import AttackSection
from toys import bank, config, everything, federation, played, played_on, pool_of, runner_of

PROTECTED = ("fedavg", "fednh", "mpfedcl", "protomargin")
"""Methods with one model for all, which a rule for weights protects."""


def bank_upload(client: int, rows: dict[int, list[float]]) -> Upload:
    return Upload(client, 5, 1, 1.0, Bank(bank(rows)), 0)


def model_upload(client: int, *values: float) -> Upload:
    return Upload(client, 5, 1, 1.0, Weights({"body.w": torch.tensor(values), "n": torch.tensor(3)}), 0)


def corrupted(kind: str, uploads: list[Upload], attackers: list[int], down=None, **options) -> list[Upload]:
    downs = {upload.client: down if down is not None else () for upload in uploads}
    return corrupt_uploads(AttackSection(0.3, kind, **options), attackers, uploads, downs, 0, 0)


# ---- who ----


def test_attackers_are_a_share_of_the_clients_drawn_with_the_seed():
    options = AttackSection(0.3)
    assert len(draw_attackers(options, 20, 0)) == 6
    assert draw_attackers(options, 20, 0) == draw_attackers(options, 20, 0) != draw_attackers(options, 20, 1)
    assert draw_attackers(AttackSection(), 20, 0) == []
    more = draw_attackers(AttackSection(0.4), 20, 0)
    assert set(draw_attackers(options, 20, 0)) < set(more)  # the same clients, and two more


# ---- what they send, by hand ----


def test_sign_flip_and_scale_of_prototypes():
    uploads = [bank_upload(0, {0: [1.0, 2.0]}), bank_upload(1, {0: [1.0, 2.0], 2: [3.0, 0.0]})]
    flipped = corrupted("sign_flip", uploads, [1])
    assert flipped[0] is uploads[0]
    assert flipped[1].message.prototypes.mean[:, 0].tolist() == [[-10, -20], [0, 0], [-30, 0]]
    assert flipped[1].message.prototypes.support.tolist() == [[1], [0], [1]]
    scaled = corrupted("scale", uploads, [1], factor=3.0)
    assert scaled[1].message.prototypes.mean[0, 0].tolist() == [3, 6]


def test_sign_flip_of_weights_goes_away_from_the_servers_model():
    """The server sent 1 and 2, the client has 2 and 0: it moved by 1 and -2, and sends 1 - 10 and 2 + 20."""
    down = Weights({"body.w": torch.tensor([1.0, 2.0]), "n": torch.tensor(2)})
    (sent,) = corrupted("sign_flip", [model_upload(0, 2.0, 0.0)], [0], down)
    assert sent.message.params["body.w"].tolist() == [-9, 22]
    assert sent.message.params["n"].item() == 3  # counters stay
    (sent,) = corrupted("scale", [model_upload(0, 2.0, 0.0)], [0], down)
    assert sent.message.params["body.w"].tolist() == [11, -18]


def test_a_little_is_the_mean_of_the_attackers_minus_z_deviations():
    """Attackers have 1 and 3: mean 2, deviation 1. Of 10 clients 2 are bad: z is the quantile of (8 - 4) / 8 = 0.5."""
    uploads = [model_upload(client, float(client)) for client in range(10)]
    uploads[1], uploads[2] = model_upload(1, 1.0), model_upload(2, 3.0)
    sent = corrupted("little", uploads, [1, 2])
    assert [sent[client].message.params["body.w"].item() for client in (1, 2)] == pytest.approx([2, 2])
    sent = corrupted("little", uploads, [1, 2], factor=1.5)
    assert [sent[client].message.params["body.w"].item() for client in (1, 2)] == pytest.approx([0.5, 0.5])
    # of 10 clients 4 are bad: 10 // 2 + 1 - 4 = 2 supporters, and z is the quantile of (6 - 2) / 6
    four = corrupted("little", uploads, [1, 2, 3, 4])
    values = [1.0, 3.0, 3.0, 4.0]
    z = statistics.NormalDist().inv_cdf(4 / 6)
    expected = statistics.mean(values) - z * statistics.pstdev(values)
    assert four[3].message.params["body.w"].item() == pytest.approx(expected)


def test_a_little_of_prototypes_is_per_class_by_the_attackers_that_have_it():
    uploads = [bank_upload(0, {0: [1.0]}), bank_upload(1, {0: [3.0], 1: [5.0]}), bank_upload(2, {0: [9.0]})]
    sent = corrupted("little", uploads, [0, 1], factor=1.0)
    assert sent[0].message.prototypes.mean[:, 0, 0].tolist() == [1, 0, 0]  # mean 2, deviation 1; it has no class 1
    assert sent[1].message.prototypes.mean[:, 0, 0].tolist() == [1, 5, 0]


def test_random_uploads_have_the_size_of_honest_ones_and_other_values_per_client_and_round():
    uploads = [bank_upload(client, {0: [3.0] * 4000, 1: [-3.0] * 4000}) for client in (0, 1)]
    first, second = (one.message.prototypes for one in corrupted("random", uploads, [0, 1]))
    assert first.mean[0].std().item() == pytest.approx(3, rel=0.05)  # 4000 draws: a standard error of 1.1 %
    assert not torch.equal(first.mean, second.mean)
    assert not first.mean[2].any()
    again = corrupted("random", uploads, [0, 1])[0].message.prototypes
    assert torch.equal(first.mean, again.mean)


def test_swap_exchanges_two_classes():
    (sent,) = corrupted("swap", [bank_upload(0, {0: [1.0], 1: [2.0], 2: [3.0]})], [0], classes=(0, 2))
    assert sent.message.prototypes.mean[:, 0, 0].tolist() == [3, 2, 1]
    (sent,) = corrupted("swap", [bank_upload(0, {0: [1.0], 1: [2.0]})], [0], classes=(0, 2))
    assert sent.message.prototypes.support[:, 0].tolist() == [0, 1, 1]


def test_poisoned_data_are_in_arrays_of_their_own():
    """Other clients share the arrays, and must not see what an attacker changes."""
    images = Examples.of(torch.zeros(6, 1, 8, 8).byte().numpy(), torch.tensor([0, 1, 2, 0, 1, 2]).numpy(), 255.0)
    images.x[0, 0, 0, 0] = 200
    part = images.subset(torch.tensor([1, 2, 4]).numpy())
    flipped = poison_data(AttackSection(0.5, "label_flip"), part, 3, 0, 0)
    assert flipped.labels.tolist() == [1, 0, 1]
    behind = poison_data(AttackSection(0.5, "backdoor", classes=(2, 0), poisoned=0.67), part, 3, 0, 0)
    has_trigger = behind.x[:, 0, -1, -1] == 200
    assert has_trigger.sum() == 2
    assert (behind.labels[has_trigger] == 2).all()
    assert behind.x[has_trigger][:, 0, -4:, -4:].float().mean() == 200
    assert images.y.tolist() == [0, 1, 2, 0, 1, 2]
    assert images.x.sum() == 200
    assert with_trigger(torch.zeros(2, 9), images)[0].tolist() == [0.0] * 5 + [200.0] * 4
    missing = Examples.of(np.array([[1.0, np.nan], [3.0, 2.0]], np.float32), np.zeros(2, int))
    assert with_trigger(torch.zeros(1, 2), missing).tolist() == [[3.0, 3.0]]


def test_no_answer_is_no_success():
    """A client without prototypes has scores of -inf; the class that the attack wants, 0, is not its answer."""
    silent = SimpleNamespace(compute_scores=lambda x: {"prototype": torch.full((len(x), 3), -torch.inf)})
    experiment = config("fedproto", attack={"share": 0.4, "kind": "backdoor"})
    state = SimpleNamespace(config=experiment, members=federation([[0, 1, 2] * 2] * 5), model=lambda client: silent)
    assert attack_success(state, [0, 1]) == {"prototype": 0.0}


def test_what_attacks_want():
    labels = torch.tensor([0, 1, 2])
    assert wanted_labels(AttackSection(0.3, "label_flip"), labels, 3).tolist() == [2, -1, 0]
    assert wanted_labels(AttackSection(0.3, "swap", classes=(1, 2)), labels, 3).tolist() == [-1, 2, 1]
    assert wanted_labels(AttackSection(0.3, "backdoor", classes=(1, 0)), labels, 3).tolist() == [1, -1, 1]
    assert wanted_labels(AttackSection(0.3, "random"), labels, 3).tolist() == [-1, -1, -1]


# ---- the page of results ----


ROBUST = ("geometric_median", "multi_krum")
MILD = ("random", "label_flip")


def test_the_page_of_results_is_that_of_the_kept_runs():
    """Its tables follow from the kept runs, and its sentences about the geometric median hold for them."""
    script = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "attacks.py"))
    kept = json.loads(script["KEPT"].read_text(encoding="utf-8"))
    page = script["PAGE"].read_text(encoding="utf-8")
    assert script["with_parts"](page, script["parts_of"](kept)) == page, "run: python benchmarks/attacks.py --write"
    rows = [row.split("|") for row in script["claim_table"](kept).splitlines()[2:] if "the same" in row]
    lost = {row[2].strip(" `"): [float(cell) for cell in row[3:5]] for row in rows}
    assert min(lost["mean"]) > 10
    assert max(lost["geometric_median"]) < 2
    sentences = " ".join(page.partition("## What the runs show")[2].partition("\n## ")[0].split())

    def shown(name: str) -> str:
        return f"{script['honest'](kept[name], 'head'):.1f}"

    for cell in (
        *(f"iid {method} sign_flip {share} geometric_median" for method in PROTECTED for share in ("0.3", "0")),
        *(
            f"nway {method} sign_flip {share} geometric_median"
            for method in ("fedavg", "fednh")
            for share in ("0.3", "0")
        ),
        "iid fedavg sign_flip 0.3 multi_krum",
        "nway mpfedcl sign_flip 0.3 geometric_median",
        "nway mpfedcl sign_flip 0 geometric_median",
        "nway mpfedcl sign_flip 0.3 capped",
        "iid fedavg sign_flip 0 krum",
        "iid fedavg sign_flip 0 mean",
        "iid protomargin sign_flip 0.3 mean",
        "iid fedavg sign_flip 0.1 mean",
        *(f"{partition} fedavg sign_flip 0.4 {rule}" for partition in ("iid", "nway") for rule in ROBUST),
        *(f"nway fedavg sign_flip 0 {rule}" for rule in ("krum", "mean", "median", "trimmed_mean")),
        "iid fedproto scale 0.3 mean",
        *(f"nway {method} little 0.3 {rule}" for method in ("fednh", "fedavg") for rule in ("mean", ROBUST[0])),
    ):
        assert re.search(rf"(?<![\d.]){re.escape(shown(cell))}(?!\d)", sentences), cell

    def success(name: str, way: str = "head") -> str:
        return f"{100 * kept[name]['success'][way]:.0f}"

    iid, nway = (
        [f"{partition} {method} backdoor 0.3" for method in ("fedavg", "mpfedcl")] for partition in ("iid", "nway")
    )
    mean, geometric, median = ([success(f"{run} {rule}") for run in iid] for rule in ("mean", ROBUST[0], "median"))
    followed, left = ([success(f"{run} {rule}") for run in nway] for rule in ("multi_krum", "median"))

    def lost(method: str, rule: str) -> str:
        attacked, clean = (kept[f"nway {method} {attack} {rule}"] for attack in ("backdoor 0.3", "sign_flip 0"))
        return f"{script['honest'](clean, 'head', attacked['attackers']) - script['honest'](attacked, 'head'):.0f}"

    for words in (
        f"fedavg gives {mean[0]} % of the marked images the attackers' class, and mpfedcl {mean[1]} %",
        f"hardly changes that ({geometric[0]} and {geometric[1]} %)",
        f"the median of coordinates prevents it ({median[0]} and {median[1]} %)",
        f"follows the attackers ({followed[0]} and {followed[1]} %)",
        f"the median leaves {left[0]} and {left[1]} %",
        f"the median of coordinates {lost('mpfedcl', 'median')} points with mpfedcl and {lost('fednh', 'median')} with "
        f"fednh, multi-Krum {lost('fednh', 'multi_krum')} with fednh",
    ):
        assert words in sentences
    swaps = [success(f"iid mpfedcl swap 0.3 {rule}", "prototype") for rule in ("mean", "clip", ROBUST[0])]
    assert f"it deceives {swaps[0]} % ({swaps[1]} with clipping, {swaps[2]} with the geometric median)" in sentences
    with_mean = [f"{partition} {method} {{}} mean" for method in script["METHODS"] for partition in ("iid", "nway")]
    for run in with_mean:
        attacked, clean = kept[run.format("backdoor 0.3")], kept[run.format("sign_flip 0")]
        assert script["honest"](clean, "head", attacked["attackers"]) - script["honest"](attacked, "head") < 2
    for method in script["METHODS"]:
        for partition in ("iid", "nway"):
            clean = float(shown(f"{partition} {method} sign_flip 0 mean"))
            assert all(clean - float(shown(f"{partition} {method} {kind} 0.3 mean")) < 5 for kind in MILD)
    for method in ("fedavg", "fednh", "mpfedcl"):
        assert max(float(shown(f"{partition} {method} sign_flip 0.3 mean")) for partition in ("iid", "nway")) < 11
    assert kept["nway mpfedcl sign_flip 0.3 capped"]["rejected"] == 20 * 6
    assert kept["iid mpfedcl sign_flip 0 capped"]["rejected"] == 1


# ---- in runs ----

KINDS = ("sign_flip", "scale", "little", "random", "swap", "label_flip", "backdoor")


@pytest.mark.parametrize("kind", KINDS)
def test_results_report_honest_clients_and_the_success_of_attacks(kind):
    members = federation([[0, 1, 2] * 2] * 5)
    result = runner_of(config("fedproto", rounds=1, attack={"share": 0.4, "kind": kind}), members).go()
    found = result.summary["attack"]
    assert (found["kind"], len(found["attackers"])) == (kind, 2)
    good = [row["accuracy_head"] for row in result.clients if row["client"] not in found["attackers"]]
    assert found["honest"]["head"] == pytest.approx(sum(good) / 3)
    assert result.rounds[-1]["honest"] == found["honest"]
    if kind in ("swap", "label_flip", "backdoor"):
        assert 0 <= found["success"]["head"] <= 1
    else:
        assert found["success"] is None
    json.dumps(result.summary)


@pytest.mark.parametrize("kind", ["random", "label_flip"])
def test_engines_and_processes_give_the_same_attack(kind):
    experiment = config("fednh", rounds=2, attack={"share": 0.4, "kind": kind})
    members = federation([[0, 1, 2] * 2] * 5)
    one = played(experiment, members)
    several = played_on(lambda *args: pool_of(Loop)(one.safeguards.members, *args[1:]), experiment, members)
    loop = played_on(lambda *args: Loop(one.safeguards.members, *args[1:]), experiment, members)
    assert {name: value.tolist() for name, value in everything(loop).items()} == {
        name: value.tolist() for name, value in everything(several).items()
    }
    for name, value in everything(one).items():  # the stacked engine differs by rounding
        torch.testing.assert_close(value, everything(loop)[name], rtol=1e-3, atol=1e-4)


def test_an_experiment_without_attackers_is_the_one_without_the_section():
    members = federation()
    plain, zero = (played(config("fedproto", rounds=2, **more), members) for more in ({}, {"attack": {"share": 0.0}}))
    assert plain.config.digest() == zero.config.digest()
    assert all(torch.equal(value, everything(zero)[name]) for name, value in everything(plain).items())
    assert "honest" not in zero.rounds[0]


def test_classes_of_an_attack_must_exist():
    with pytest.raises(UserError, match=r"attack\.classes: got \[0, 7\], but classes are numbered from 0 to 2"):
        played(config("fedproto", attack={"share": 0.5, "kind": "swap", "classes": [0, 7]}), federation())


@pytest.mark.slow
@pytest.mark.usefixtures("mnist_root")
def test_the_geometric_median_protects_fedproto_where_the_mean_fails():
    """30 % of 20 clients send -10 times their prototypes. Clients have 100 images of MNIST, and 20 rounds."""

    def accuracies(share: float, rule: str) -> dict[str, float]:
        table = {
            "run": {"rounds": 20, "eval_every": 20},
            "data": {"name": "mnist", "clients": 20, "limit": 2000},
            "partition": {"name": "iid"},
            "net": {"name": "cnn"},
            "method": {"name": "fedproto", "initial_weights": "same"},
            "train": {"lr": 0.03},
            "trust": {"prototypes": rule},
            "attack": {"share": share, "kind": "sign_flip"},
        }
        result = protofed.run(table, progress=False)
        bad = draw_attackers(AttackSection(0.3), 20, 0)
        good = [row for row in result.clients if row["client"] not in bad]
        return {way: sum(row[f"accuracy_{way}"] for row in good) / len(good) for way in ("head", "prototype")}

    clean, mean, median = accuracies(0.0, "mean"), accuracies(0.3, "mean"), accuracies(0.3, "geometric_median")
    for way in ("head", "prototype"):
        assert clean[way] - mean[way] > 0.10, way
        assert clean[way] - median[way] < 0.02, way
