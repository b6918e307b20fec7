"""`protofed measure`: its figures are those of the pure measures, and what cannot be measured is said."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import protofed
from protofed.core import cross_entropy
from protofed.errors import UserError
from protofed.experiment.folder import Folder
from protofed.measures.correlation import pearson
from protofed.measures.discrepancy import gradient_dissimilarity
from protofed.measures.evenness import evenness
from protofed.measures.geometry import cosine_similarities, drift, scatter
from protofed.measures.of_features import evenly_spaced_rows, model_prototypes
from protofed.measures.on_demand import MEASURES, measure
from protofed.methods.parts.margins import aggregate_mean_margin
from test_cli import protofed as command  # noqa: F401

TABLE = {"run": {"rounds": 4, "trace_every": 1}, "data": {"clients": 4}, "eval": {"personal": True}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each method that is asked for."""
    torch.set_num_threads(1)
    made: dict[str, protofed.Result] = {}

    def of(name: str) -> protofed.Result:
        if name not in made:
            made[name] = protofed.run({**TABLE, "method": {"name": name}}, tmp_path_factory.mktemp("runs") / name)
        return made[name]

    return of


@pytest.fixture
def asked(runs, command):  # noqa: F811
    """The rows of one measure, as --json prints them."""

    def ask(method: str, what: str, *words: str) -> dict:
        code, out, err = command("measure", str(runs(method).folder), "--what", what, *words, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)[what]["rows"]

    return ask


def test_a_folder_gives_what_the_run_itself_gives(runs, asked):
    for what in ("classification", "scatter", "fairness", "cost"):
        assert asked("fedproto", what) == measure(runs("fedproto"), [what])[what].rows


def test_the_mean_is_over_clients(asked):
    rows = asked("fedavg", "classification")
    clients = [row for name, row in rows.items() if name.startswith("client ")]
    assert len(clients) == 4
    for key in ("balanced_accuracy", "macro_f1", "auc", "calibration_error"):
        assert rows["mean"][key] == pytest.approx(sum(row[key] for row in clients) / 4)
        assert 0 <= rows["server"][key] <= 1


def test_one_client_alone(runs, asked):
    rows = asked("fedavg", "classification", "--client", "2")
    assert list(rows) == ["client 2"]
    assert rows["client 2"] == asked("fedavg", "classification")["client 2"]
    counts = np.array([list(row.values()) for row in asked("fedavg", "confusion", "--client", "2").values()])
    own = runs("fedavg").clients[2]
    assert counts.sum() == own["test"]
    assert counts.trace() / counts.sum() == pytest.approx(own["accuracy_head"])


def test_confusion_is_the_servers_or_all_clients_together(runs, asked):
    shared = np.array([list(row.values()) for row in asked("fedavg", "confusion").values()])
    assert shared.trace() / shared.sum() == pytest.approx(runs("fedavg").summary["global"]["accuracy"])
    own = np.array([list(row.values()) for row in asked("fedproto", "confusion").values()])
    assert own.sum() == sum(row["test"] for row in runs("fedproto").clients)
    right = sum(row["accuracy_head"] * row["test"] for row in runs("fedproto").clients)
    assert own.trace() == pytest.approx(right)


def test_fairness_is_over_the_rows_of_clients_csv(runs, asked):
    rows = asked("fedproto", "fairness")
    assert {"head", "prototype", "prototype_all", "personal_v", "personal_v_prototype"} <= set(rows)
    for name, column in (("prototype", "accuracy_prototype"), ("personal_l", "personal_l")):
        values = [row[column] for row in runs("fedproto").clients]
        assert rows[name] == {"clients": 4, **evenness(values)}


def test_cost_until_an_accuracy(runs, asked):
    rounds = runs("fedproto").rounds
    wanted = rounds[2]["accuracy_head"]
    first = next(place for place, row in enumerate(rounds, 1) if row["accuracy_head"] >= wanted)
    rows = asked("fedproto", "cost", "--accuracy", str(wanted))
    assert rows["until head"]["rounds"] == first
    assert rows["until head"]["up_bytes"] == sum(row["up_bytes"] for row in rounds[:first])
    assert set(asked("fedproto", "cost", "--accuracy", "1.0")["until prototype"].values()) == {None}
    assert "until global" not in rows
    assert "until global" in asked("fedavg", "cost")


def test_similarity_and_margins_are_those_of_the_servers_prototypes(runs, asked):
    own = runs("fedproto").prototypes
    table = [
        [math.nan if value is None else value for value in row.values()]
        for row in asked("fedproto", "similarity").values()
    ]
    np.testing.assert_allclose(table, cosine_similarities(own).numpy())
    rows = asked("fedproto", "margins")
    assert rows["mean"] == {"between": aggregate_mean_margin(own), "letter": 1}
    per_class = [row["between"] for name, row in rows.items() if name.startswith("class ")]
    assert len(per_class) == int((own.support > 0).sum())
    assert np.mean(per_class) == pytest.approx(rows["mean"]["between"])
    assert rows["round 4"] == rows["mean"]
    assert rows["round 1"] != rows["mean"]


def test_drift_is_from_one_traced_round_to_the_next(runs, asked):
    trace = Folder(runs("fedproto").folder).trace()
    rows = asked("fedproto", "drift")
    assert list(rows) == ["round 2", "round 3", "round 4"]
    moved = drift(trace[0][1], trace[1][1])
    assert rows["round 2"]["mean"] == pytest.approx(float(moved.nanmean()))
    for label, value in enumerate(moved.tolist()):
        assert rows["round 2"][str(label)] == (None if math.isnan(value) else pytest.approx(value))


def test_scatter_is_that_of_the_test_sets_embeddings(runs, asked):
    held, test = runs("fedavg").state.model(1), runs("fedavg").state.members.test[1]
    expected = scatter(*held.net.features(held.params, test), 10)
    assert asked("fedavg", "scatter", "--client", "1")["client 1"]["within"] == pytest.approx(expected.within)


def test_pooled_scatter_is_that_of_all_test_sets_together(runs, asked):
    state = runs("fedproto").state
    models = [state.model(client) for client in range(len(state.members))]
    parts = [model.net.features(model.params, test) for model, test in zip(models, state.members.test, strict=True)]
    z, y = (torch.cat(part) for part in zip(*parts, strict=True))
    found = asked("fedproto", "scatter")
    assert found["pooled"] == pytest.approx({**(expected := scatter(z, y, 10))._asdict(), "ratio": expected.ratio})
    assert found["pooled"]["within"] > found["mean"]["within"]  # each client has its own place for a class
    assert "pooled" not in asked("fedproto", "scatter", "--client", "1")


def test_gradients_are_taken_at_the_shared_model(runs, asked):
    state = runs("fedavg").state
    expected = gradient_dissimilarity(state.members.nets[0], state.server.params, state.members.train, cross_entropy)
    assert asked("fedavg", "gradients")["shared model"]["dissimilarity"] == pytest.approx(expected)


def test_gradients_are_those_of_the_methods_own_answers(runs, asked):
    state = runs("fednh").state
    net, method, params = state.members.nets[0], state.config.method, state.server.params
    grads = []
    for part in state.members.train:
        leaves = {name: value.detach().requires_grad_() for name, value in params.items() if net.trains(name, value)}
        ((x, y),) = part.batches(10_000)
        loss = torch.nn.functional.cross_entropy(method.logits(net, {**params, **leaves}, x), y)
        found = torch.autograd.grad(
            loss, [leaves[name] for name in sorted(leaves)], allow_unused=True, materialize_grads=True
        )
        grads.append(torch.cat([grad.flatten() for grad in found]).double())
    sizes = torch.tensor([len(part) for part in state.members.train]).double()
    central = (torch.stack(grads) * (sizes / sizes.sum()).unsqueeze(1)).sum(0)
    expected = float(sum((grad - central).square().sum() for grad in grads) / len(grads))
    assert asked("fednh", "gradients")["shared model"]["dissimilarity"] == pytest.approx(expected, rel=1e-4)


def test_a_run_is_as_near_as_can_be_to_itself(runs, tmp_path):
    table = {"run": {"rounds": 2}, "data": {"limit": 200}, "partition": {"name": "pooled"}, "method": {"name": "local"}}
    alone = protofed.run(table)
    assert measure(alone, ["discrepancy"], beside=alone)["discrepancy"].rows["clients"]["mmd"] == pytest.approx(
        0, abs=1e-6
    )
    further = measure(runs("fedavg"), ["discrepancy"], beside=alone)["discrepancy"].rows["clients"]
    assert further["mmd"] > 0.1
    assert further["width"] > 0
    other = protofed.run({**table, "net": {"dim": 7}})
    with pytest.raises(
        UserError, match=r"The embeddings have \[7\] and \[50\] dimensions\. Use two runs with the same net\.dim"
    ):
        measure(other, ["discrepancy"], beside=alone)


def test_some_of_many_rows_are_taken_at_equal_distances():
    assert evenly_spaced_rows(torch.arange(10), 4).tolist() == [0, 2, 5, 7]
    assert evenly_spaced_rows(torch.arange(3), 4).tolist() == [0, 1, 2]


def test_discrepancy_on_the_command_line(runs, asked):
    rows = asked("fedproto", "discrepancy", "--beside", str(runs("fedavg").folder))
    assert rows == measure(runs("fedproto"), ["discrepancy"], beside=runs("fedavg"))["discrepancy"].rows


def test_ffd_is_the_share_by_which_the_discrepancy_is_smaller_than_the_baselines(runs, asked):
    central, baseline = str(runs("fedproto").folder), str(runs("fednh").folder)
    rows = asked("fedavg", "discrepancy", "--beside", central, "--baseline", baseline)
    assert rows["clients"]["mmd"] == asked("fedavg", "discrepancy", "--beside", central)["clients"]["mmd"]
    assert rows["baseline"]["mmd"] == asked("fednh", "discrepancy", "--beside", central)["clients"]["mmd"]
    expected = 100 * (1 - rows["clients"]["mmd"] / rows["baseline"]["mmd"])
    assert rows["clients"]["ffd"] == pytest.approx(expected)


def test_model_margins_are_distances_between_the_prototypes_of_the_shared_model(runs, asked):
    state = runs("fedavg").state
    net, params, train = state.members.nets[0], state.server.params, state.members.train
    z, y = (torch.cat(parts) for parts in zip(*(net.features(params, part) for part in train), strict=True))
    means = torch.stack([z[y == label].mean(0) for label in y.unique()])
    apart = torch.cdist(means, means)
    expected = float(apart.sum() / (len(means) * (len(means) - 1)))
    rows = asked("fedavg", "model_margins")
    assert rows["all clients"] == {"between": pytest.approx(expected, rel=1e-5), "letter": 1.0}
    last = [train[client] for client in runs("fedavg").rounds[-1]["clients"]]
    of_last = model_prototypes(net, params, last)
    assert of_last.support.sum() == sum(map(len, last))
    assert rows["clients of the last round"]["between"] == pytest.approx(aggregate_mean_margin(of_last))


def test_pearson_by_hand():
    """Deviations (-1, 0, 1) and (-2, 1, 1): 3 / sqrt(2 * 6); with three pairs p = 1 - 2 / pi * asin(rho)."""
    found = pearson([1.0, 2.0, 3.0], [1.0, 4.0, 4.0])
    assert found.rho == pytest.approx(3 / 12**0.5)
    assert found.p_value == pytest.approx(1 - 2 / math.pi * math.asin(3 / 12**0.5))
    assert math.isnan(pearson([1.0, 2.0, 3.0], [1.0, 1.0, 1.0]).rho)
    assert math.isnan(pearson([1.0, 2.0], [1.0, 3.0]).rho)
    with pytest.raises(ValueError, match="got 2 and 3 figures"):
        pearson([1.0, 2.0], [1.0, 2.0, 3.0])


def test_pearson_of_the_printed_tables_2_and_4_of_prototype_guided_fl():
    """FedAvg, FedProx and FedProto on synthetic data, MNIST, FEMNIST and CelebA; then the four central models."""
    margins = [0.45, 0.48, 0.63, 2.38, 2.14, 2.49, 1.15, 1.14, 1.51, 0.34, 0.47, 0.48]
    accuracies = [72.3, 74.8, 78.7, 88.8, 91.7, 93.3, 75.1, 81.1, 82.5, 86.2, 86.4, 87.8]
    assert pearson(margins, accuracies) == pytest.approx((0.594, 0.042, 12), abs=5e-4)
    central = ([0.60, 8.68, 3.61, 0.48], [78.5, 99.0, 99.4, 92.6])
    assert pearson(margins + central[0], accuracies + central[1]) == pytest.approx((0.648, 0.0067, 16), abs=5e-4)


def test_tables_for_people(runs, command):  # noqa: F811
    code, out, err = command("measure", str(runs("fedproto").folder))
    assert (code, err) == (0, "")
    assert [line.partition(":")[0] for line in out.splitlines() if ": " in line] == [
        "fairness",
        "classification",
        "cost",
    ]
    assert "balanced accuracy" in out
    out = command("measure", str(runs("fedproto").folder), "--what", "margins,drift", "--what", "margins")[1]
    assert out.count("margins: ") == out.count("drift: ") == 1


def test_the_help_names_every_measure(command):  # noqa: F811
    words = command("measure", "--help")[1].replace("│", " ").split()
    assert set(MEASURES) <= {word.strip(",.;") for word in words}


@pytest.mark.parametrize(
    ("method", "words", "message"),
    [
        (
            "fedavg",
            ["--what", "drfit"],
            'There is no measure "drfit". Did you mean "drift"? Known: bounds, classification, confusion, cost, discrepancy, drift, entropy, fairness, gradients, margins, model_margins, objective, scatter, similarity, unknown.',
        ),
        (
            "fedavg",
            ["--what", "similarity"],
            "The server of fedavg has no prototypes to measure. Use a run of a method that shares them, such as fedproto.",
        ),
        (
            "fedproto",
            ["--what", "gradients"],
            "gradients needs one model that all clients share, but the clients of fedproto have different ones. Use a method that shares all weights, such as fedavg.",
        ),
        (
            "fedavg",
            ["--what", "discrepancy"],
            "discrepancy compares the features of two runs. Give the other run with --beside DIR.",
        ),
        (
            "fedavg",
            ["--beside", "FOLDER"],
            "--beside: only discrepancy compares two runs. Add --what discrepancy.",
        ),
        (
            "fedavg",
            ["--baseline", "FOLDER"],
            "--baseline: only discrepancy has a baseline. Add --what discrepancy --beside DIR.",
        ),
        ("fedavg", ["--client", "4"], "There is no client 4; clients are numbered from 0 to 3."),
        (
            "fedavg",
            ["--client", "1", "--what", "cost"],
            "--client 1: only bounds, classification, confusion, entropy, scatter, unknown can be measured for a single client.",
        ),
    ],
)
def test_what_cannot_be_measured_is_said(method, words, message, runs, command):  # noqa: F811
    folder = str(runs(method).folder)
    given = [folder if word == "FOLDER" else word for word in words]
    assert command("measure", folder, *given) == (2, "", f"protofed: {message}\n")


def test_drift_wants_a_trace(command):  # noqa: F811
    command("run", "--quiet", "--set", "run.rounds=1", "--set", "data.clients=2", "--out", "a")
    assert command("measure", "a", "--what", "drift") == (
        2,
        "",
        "protofed: drift needs at least two rounds in trace/, but a has 0. Run it again with --set run.trace_every=1.\n",
    )


def test_other_data_than_the_runs_are_noticed(command, tmp_path):  # noqa: F811
    command("run", "--quiet", "--set", "run.rounds=1", "--set", "data.clients=2", "--out", "a")
    path = tmp_path / "a" / "partition.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "sha256": "of others"}))
    assert command("measure", "a", "--what", "scatter")[2] == (
        "protofed: a was run on other data than those found now: its partition.json does not match them. "
        "Restore the data of the run.\n"
    )
    assert command("measure", "a", "--what", "cost")[0] == 0  # which needs no data


def test_own_data_are_measured_in_python(command, tmp_path):  # noqa: F811
    draw = np.random.RandomState(0)
    data = [(draw.normal(size=(30, 4)), np.array(["mole", "newt", "owl"])[np.arange(30) % 3]) for _ in range(2)]
    federation = protofed.Federation(data=data)
    run = protofed.run({"run": {"rounds": 1}}, tmp_path / "own", federation=federation)
    again = protofed.Result.load(tmp_path / "own", federation)
    assert measure(again) == measure(run)
    assert list(measure(run, ["confusion"])["confusion"].rows) == ["mole", "newt", "owl"]
    assert "so it can be measured only there: protofed.measure(" in command("measure", "own")[2]
