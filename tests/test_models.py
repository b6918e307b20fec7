"""Models of a finished run: predicting, exporting, joining."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import protofed
from protofed.core import Phase
from protofed.data.sources import SOURCES
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.messages import message_size
from protofed.methods import METHODS
from protofed.methods.local import Local
from protofed.models.export import FromRaw, write_model
from protofed.models.input_scale import scale_caution
from protofed.models.join import join
from protofed.models.model_files import read_model
from protofed.nets import weights
from test_cli import protofed as command  # noqa: F401
from test_layout import Viewed
from toys import bank

TABLE = {"run": {"rounds": 12}, "data": {"clients": 6}}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    torch.set_num_threads(1)
    return protofed.run(TABLE, out)


@pytest.fixture(scope="module")
def digits():
    return SOURCES["digits"]("")


def test_predictions_are_those_that_were_counted(run, digits):
    for client, row in enumerate(run.clients):
        test = run.state.members.test[client]
        x, y = test.x[test.index].numpy(), test.labels.numpy()
        for by in ("head", "prototype", "prototype_all"):
            assert (run.predict(x, client, by)["label"] == y).mean() == pytest.approx(row[f"accuracy_{by}"])


def test_a_folder_predicts_without_the_data(run, digits, monkeypatch):
    def gone(root: str) -> None:
        raise UserError("the data are not here")

    monkeypatch.setitem(SOURCES, "digits", gone)
    again = protofed.Result.load(run.folder)
    x = digits.test.x[:30].numpy()
    for by in ("head", "prototype"):
        np.testing.assert_array_equal(again.predict(x, 2, by), run.predict(x, 2, by))
    assert torch.equal(again.prototypes.mean, run.prototypes.mean)


def test_a_folder_gives_back_what_the_run_gave(run):
    again = protofed.Result.load(run.folder)
    assert (again.summary, again.rounds, again.clients, again.unknown) == (
        run.summary,
        run.rounds,
        run.clients,
        run.unknown,
    )


def test_without_a_client_it_is_client_0_where_the_server_has_no_model(run, digits):
    x = digits.test.x[:5].numpy()
    np.testing.assert_array_equal(run.predict(x), run.predict(x, 0))


def test_values_too_large_for_the_net_are_refused(run):
    with pytest.raises(UserError, match="64 of the inputs' 64 values are not finite"):
        run.predict(np.full((1, 8, 8), 1e300), 0)


def test_the_servers_model_is_the_default_where_there_is_one(run, digits, command):  # noqa: F811
    shared = protofed.run({**TABLE, "method": {"name": "fedavg"}})
    assert shared.state.default_client() is None
    right = shared.predict(digits.test.x.numpy())["label"] == digits.test.y.numpy()
    assert right.mean() == pytest.approx(shared.summary["global"]["accuracy"])
    assert run.state.default_client() == 0


def test_the_servers_model_predicts_rows_of_tables_that_are_scaled_alike(tmp_path):
    """Medians, which replace missing numbers, stay a client's own; the server's model has their mean."""
    for name, start in (("a", 0), ("b", 100)):
        ages = start + np.arange(40)
        pd.DataFrame({"age": ages, "outcome": np.where(ages % 2, "x", "y")}).to_csv(
            tmp_path / f"{name}.csv", index=False
        )
    table = {
        "run": {"rounds": 1},
        "data": {"name": "table", "root": str(tmp_path), "target": "outcome", "scaling": "federated"},
        "method": {"name": "fedavg"},
    }
    result = protofed.run(table)
    recipes = result.state.members.recipes
    fills = [recipe.steps[0].fill for recipe in recipes]
    assert fills[0] != fills[1]
    model = result.predictor()
    assert model.client is None
    assert model.recipe.steps[0].fill == np.mean(fills)
    assert len(result.predict(pd.DataFrame({"age": [3.0, 110.0]}))) == 2
    own = protofed.run({**table, "data": {**table["data"], "scaling": "client"}})
    with pytest.raises(UserError, match="Clients of this run normalise their inputs by their own statistics"):
        own.predictor()


def test_the_servers_model_needs_a_client_if_each_normalises_by_its_own_statistics(tmp_path):
    draw, y, site = np.random.RandomState(0), np.arange(80) % 2, np.repeat(["near", "far"], 40)
    x = (draw.normal(size=(80, 4)) + 3 * y[:, None]) * np.where(site == "near", 1.0, 100.0)[:, None]
    np.savez(tmp_path / "own.npz", x=x, y=y, client=site)
    data = {"name": "npz", "root": str(tmp_path / "own.npz"), "normalise": "client"}
    table = {"run": {"rounds": 2}, "data": data, "partition": {"name": "natural"}, "method": {"name": "fedavg"}}
    result = protofed.run(table)
    with pytest.raises(UserError, match=r"by their own statistics, so new inputs belong to one of them\. Name it"):
        result.predict(x[40:])
    assert len(result.predict(x[40:], client="far")) == 40


def test_predict_from_the_command_line(run, digits, command, tmp_path):  # noqa: F811
    np.save(tmp_path / "x.npy", digits.test.x[:9].numpy())
    folder = str(run.folder)
    code, out, err = command("predict", folder, "--input", "x.npy", "--by", "prototype", "--out", "y.npy")
    assert (code, err) == (0, "Using the model of client 0. Use --client for another one.\n")
    assert out.startswith("9 inputs: ")
    assert out.endswith("unknown. Written to y.npy.\n")
    found = np.load("y.npy", allow_pickle=False)
    assert found.dtype.names == ("label", "scores", "distance", "unknown")
    np.testing.assert_array_equal(found, run.predict(digits.test.x[:9].numpy(), 0, "prototype"))
    np.testing.assert_allclose(found["distance"], -found["scores"].max(1))
    code, out, _ = command("predict", folder, "--input", "x.npy", "--client", "2")
    assert out.splitlines()[0] == "label\tunknown"
    assert len(out.splitlines()) == 10
    np.save(tmp_path / "flat.npy", digits.test.x[:9, 0].numpy())  # without the dimension of one channel
    assert command("predict", folder, "--input", "flat.npy", "--client", "2")[1] == out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--input", "no.npy"], "There is no file no.npy."),
        (["--input", "bad.npy"], "bad.npy is not a .npy file. Write one with numpy.save."),
        (["--input", "many.npz"], "many.npz is not a .npy file. Write one with numpy.save."),
        (["--input", "rgb.npy"], "The inputs have shape [2, 8, 8, 3]; must be [n, 1, 8, 8]."),
        (["--input", "words.npy"], "The inputs are of type <U1; they must be numbers of shape [n, 1, 8, 8]"),
        (
            ["--input", "nan.npy"],
            "64 of the inputs' 64 values are not finite, the first of them in row 1. Fill them in.",
        ),
        (["--input", "x.npy", "--client", "6"], "There is no client 6; clients are numbered from 0 to 5."),
        (
            ["--input", "x.npy", "--by", "protoype", "--client", "1"],
            'This model cannot predict by "protoype". Did you mean "prototype"? Known: head, prototype, prototype_all.',
        ),
        (["--input", "x.npy", "--out", "x.npy"], "x.npy already exists. Give another name."),
    ],
)
def test_what_cannot_be_predicted_is_said(run, words, message, command, tmp_path):  # noqa: F811
    np.save(tmp_path / "x.npy", np.zeros((1, 1, 8, 8)))
    np.save(tmp_path / "rgb.npy", np.zeros((2, 8, 8, 3)))
    np.save(tmp_path / "nan.npy", np.full((1, 1, 8, 8), np.nan))
    np.save(tmp_path / "words.npy", np.array(["a"]))
    np.savez(tmp_path / "many.npz", a=np.zeros(3))
    (tmp_path / "bad.npy").write_bytes(b"junk")
    code, _, err = command("predict", str(run.folder), *words)
    assert code == 2
    assert err.startswith(f"protofed: {message}")


def test_an_unfinished_or_strange_folder_has_no_model(command, tmp_path):  # noqa: F811
    np.save(tmp_path / "x.npy", np.zeros((1, 1, 8, 8)))
    assert "There is no folder nowhere." in command("predict", "nowhere", "--input", "x.npy")[2]
    command("run", "--quiet", "--set", "run.rounds=1", "--set", "data.clients=2", "--out", "a")
    (tmp_path / "a" / "result.json").unlink()
    assert (
        "its run has not finished. Continue it with `protofed run --resume --out a`."
        in command("predict", "a", "--input", "x.npy")[2]
    )


def test_inputs_of_another_scale_are_said(run, digits, command, tmp_path):  # noqa: F811
    """Digits have values from 0 to 16, which are divided by 16."""
    model, x = run.predictor(0), digits.test.x[:30]
    assert scale_caution(model.data, x) == ""
    assert scale_caution(model.data, x[:1]) == ""
    assert scale_caution(model.data, x[:0]) == ""
    assert "from 0 to 1, seem to have another scale than the training examples" in scale_caution(model.data, x / 16)
    assert "Careful" in scale_caution(model.data, x + 1000)
    assert "Careful" in scale_caution(model.data, x * 100)
    without_examples = replace(model.data, index=model.data.index[:0])
    assert scale_caution(without_examples, x) == ""
    assert "0 and 1 are usual" in scale_caution(replace(without_examples, scale=255.0, mean=0.3, std=0.3), x / 255)
    assert scale_caution(replace(without_examples, scale=1.0, mean=0.0, std=1.0), x * 1e6) == ""  # nothing is known
    np.save(tmp_path / "small.npy", (x / 16).numpy())
    code, out, err = command("predict", str(run.folder), "--input", "small.npy", "--client", "1")
    assert (code, "Careful" in out) == (0, False)
    assert err.startswith("Careful: the inputs, with values from 0 to 1, ")


def test_a_newcomer_whose_inputs_have_another_scale_is_told(run, digits):
    x, y = digits.train.x[:200].numpy(), digits.train.y[:200].numpy()
    assert join(run, (x, y), epochs=1).scale_caution == ""
    assert "Careful: the inputs, with values from 0 to 1" in join(run, (x / 16, y), epochs=1).text()


def test_nothing_to_predict_gives_nothing(run):
    assert len(run.predict(np.zeros((0, 1, 8, 8)), 0, "prototype")) == 0


def test_tuned_models_are_predicted_with(tmp_path, monkeypatch):
    class Tuned(Local):
        def tune(self, epochs):
            return (Phase(3),)

    monkeypatch.setitem(METHODS, "tuned", Tuned)
    result = protofed.run({"run": {"rounds": 3}, "data": {"clients": 3}, "method": {"name": "tuned"}}, tmp_path / "run")
    test = result.state.members.test[1]
    for opened in (result, protofed.Result.load(tmp_path / "run")):
        right = opened.predict(test.x[test.index].numpy(), 1)["label"] == test.labels.numpy()
        assert right.mean() == pytest.approx(result.clients[1]["accuracy_head"])


def test_prototypes_are_none_where_a_method_has_none():
    assert protofed.run({"run": {"rounds": 1}, "data": {"clients": 2}, "method": {"name": "fedavg"}}).prototypes is None


def test_an_exported_state_dict_is_the_models(run, command, tmp_path):  # noqa: F811
    code, out, _ = command("export", str(run.folder), "--client", "2", "--out", "c.safetensors")
    assert (code, out) == (0, "mlp with 7,920 parameters. Written to c.safetensors.\n")
    run.model(2).load_state_dict(load_file("c.safetensors"))
    assert torch.equal(load_file("c.safetensors")["head.out.bias"], run.model(2).head.out.bias)
    with safe_open("c.safetensors", "pt") as file:
        about = file.metadata()
    assert json.loads(about["labels"]) == list(range(10))
    assert json.loads(about["input"])["scale"] == 16.0
    assert command("export", str(run.folder), "--client", "2", "--out", "c.safetensors")[0] == 2
    assert (
        "must end in .safetensors or .onnx" in command("export", str(run.folder), "--client", "2", "--out", "c.pt")[2]
    )


@pytest.mark.parametrize("hyper", [0, 16])
def test_fedrod_exports_fednhs_net_which_has_a_head_without_bias(hyper, digits, command, tmp_path):  # noqa: F811
    table = {
        "run": {"rounds": 2},
        "data": {"clients": 4},
        "net": {"name": "cnn_fednh", "kernel": 3, "padding": "same", "channels": [8, 8], "dense": [24, 16]},
        "method": {"name": "fedrod", "hyper": hyper, "personal": "after"},
    }
    result = protofed.run(table, tmp_path / "run")
    code, out, error = command("export", str(result.folder), "--client", "1", "--out", str(tmp_path / "c.safetensors"))
    assert code == 0, error
    assert "cnn_fednh" in out
    state = load_file(tmp_path / "c.safetensors")
    assert [tuple(value.shape) for name, value in state.items() if name.startswith("head.")] == [(10, 16)]
    module = result.model(1)
    module.load_state_dict(state)
    predicted = result.predict(digits.test.x.numpy(), 1)
    with torch.no_grad():
        scores = module(digits.test.normalised(digits.test.x)).numpy()
    # the heads are summed before or after the product: sums of 16 numbers, rounded by 6e-8 each
    np.testing.assert_allclose(scores, predicted["scores"], rtol=1e-5, atol=1e-5)
    assert (scores.argmax(1) == predicted["label"]).all()


@pytest.mark.filterwarnings("ignore")
def test_an_exported_onnx_graph_gives_the_same_from_raw_inputs(run, digits, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    write_model(run.state.model(3), tmp_path / "c.onnx")
    x = digits.test.x[:7].numpy()
    session = onnxruntime.InferenceSession(tmp_path / "c.onnx")
    embedding, logits = session.run(["embedding", "logits"], {"input": x.astype(np.float32)})
    np.testing.assert_allclose(logits, run.predict(x, 3)["scores"], rtol=1e-4, atol=1e-4)
    assert embedding.shape == (7, 50)


def test_a_net_that_views_takes_raw_inputs():
    draw = np.random.RandomState(0)
    data = [(draw.normal(size=(20, 3, 8, 8)).astype(np.float32), np.arange(20) % 3) for _ in range(2)]
    result = protofed.run(
        {"run": {"rounds": 1}}, federation=protofed.Federation(data, nets=[lambda: (Viewed(), "out")])
    )
    model = result.state.model(0)
    x = torch.from_numpy(data[0][0])
    with torch.no_grad():
        found = FromRaw(model)(x)[1].argmax(1).numpy()
    assert np.array_equal(found, result.predict(x.numpy(), 0)["label"])


def test_an_exported_onnx_graph_takes_images_with_several_channels(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    x = np.random.RandomState(0).randint(0, 255, (30, 3, 8, 8)).astype(np.uint8)
    own = protofed.Federation([(x[:15], np.arange(15) % 3), (x[15:], np.arange(15) % 3)])
    result = own.run({"run": {"rounds": 1}, "net": {"name": "convnet", "channels": [4]}, "method": {"name": "fedavg"}})
    write_model(result.state.model(0), tmp_path / "c.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "c.onnx")
    _, logits = session.run(None, {"input": x[:5].astype(np.float32)})
    np.testing.assert_allclose(logits, result.predict(x[:5], 0)["scores"], rtol=1e-4, atol=1e-5)


def test_onnx_without_its_package_is_said(run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match=r"ONNX needs the package onnx. Run pip install 'protofed\[onnx\]'"):
        write_model(run.state.model(0), tmp_path / "c.onnx")


def newcomer(digits, seed: int, shots: int = 6):
    draw = np.random.RandomState(seed)
    classes = draw.choice(10, 3, replace=False)
    labels, exam = digits.train.y.numpy(), digits.test.y.numpy()
    train = np.concatenate([draw.permutation(np.flatnonzero(labels == label))[:shots] for label in classes])
    test = np.flatnonzero(np.isin(exam, classes))
    return (digits.train.x.numpy()[train], labels[train]), (digits.test.x.numpy()[test], exam[test])


def test_a_newcomer_is_a_client_that_trains_with_the_prototypes_of_its_classes(run, digits):
    data, test = newcomer(digits, 0)
    found = join(run, data, test, epochs=3)
    assert found.downloaded == 3 * 50
    assert (found.train, found.test, found.steps) == (18, len(test[1]), 9)
    assert found.classes == sorted(set(data[1].tolist()))
    assert (found.model.predict(test[0])["label"] == test[1]).mean() == pytest.approx(found.accuracy["head"])


def test_a_single_row_with_few_columns_gets_no_caution():
    x = np.random.RandomState(0).normal(5, 2, (100, 2)).astype(np.float32)
    data = Examples.of(x, np.zeros(100, int))
    assert {scale_caution(data, row[None]) for row in data.x} == {""}
    assert "another scale" in scale_caution(data, 1000 * data.x[:1])


def test_a_newcomer_to_a_run_with_a_frozen_encoder_has_its_body(digits):
    privacy = {"noise": 1.0, "encoder": "frozen"}
    result = protofed.run({**TABLE, "run": {"rounds": 1}, "privacy": privacy})
    members = result.state.members
    public = members.client(result.state.config.run.seed, 0, 0).fresh_params(same=True)
    for seed in (None, 7):
        params = join(result, *newcomer(digits, 1), epochs=2, seed=seed).model.params
        assert all(torch.equal(value, public[name]) for name, value in params.items() if name.startswith("body."))
        heads = [name for name in params if name.startswith("head.")]
        assert not all(torch.equal(params[name], public[name]) for name in heads)


def test_a_newcomer_without_pull_is_alone(digits):
    plain = protofed.run({**TABLE, "run": {"rounds": 1}, "method": {"pull": 0.0}})
    found = join(plain, *newcomer(digits, 1), epochs=4)
    assert found.accuracy["head"] == found.alone


@pytest.mark.parametrize("method", ["local", "fedproto"])
def test_a_newcomer_starts_from_the_same_weights_as_the_clients_of_the_run(method, digits):
    options = {"name": method, "initial_weights": "same", **({"pull": 0.0} if method == "fedproto" else {})}
    result = protofed.run({**TABLE, "run": {"rounds": 1}, "method": options})
    found = join(result, *newcomer(digits, 1), epochs=0)
    members = result.state.members
    first = members.client(result.state.config.run.seed, 0, 0).fresh_params(same=True)
    assert all(torch.equal(value, first[name]) for name, value in found.model.params.items())
    assert not found.shared  # random weights, not those of the server
    found = join(result, *newcomer(digits, 1), epochs=4)
    assert found.accuracy["head"] == found.alone


@pytest.mark.parametrize("method", ["mpfedcl", "fpl"])
def test_a_newcomer_with_one_class_is_contrasted_with_the_other_classes(method, digits):
    result = protofed.run({**TABLE, "run": {"rounds": 2}, "method": {"name": method}})
    (x, y), (x_test, y_test) = newcomer(digits, 0)
    mine, mine_test = y == y[0], y_test == y[0]
    data, test = (x[mine], y[mine]), (x_test[mine_test], y_test[mine_test])
    config = result.state.config
    without_contrast = replace(config, method=replace(config.method, contrast=0.0))
    with_contrast, without = (
        join(replace(result, state=result.state._replace(config=changed)), data, test, epochs=2)
        for changed in (config, without_contrast)
    )
    moved = [
        (value - without.model.params[name]).abs().max().item() for name, value in with_contrast.model.params.items()
    ]
    assert max(moved) > 1e-4  # rounding is a thousand times smaller
    sent = message_size(config.method.broadcast(result.state.server, 0)).params
    assert with_contrast.downloaded == sent  # not only the prototypes of its class


def test_newcomers_gain_on_average(run, digits):
    found = [join(run, *newcomer(digits, seed), epochs=6, seed=seed) for seed in range(5)]
    assert sum(one.accuracy["head"] for one in found) > sum(one.alone for one in found)


def test_a_newcomers_inputs_are_normalised_as_the_runs(run, digits):
    (x, y), test = newcomer(digits, 0)
    found = join(run, (x, y), test, epochs=1)
    assert found.model.data.input == run.state.members.train[0].input
    assert found.model.data.take(torch.arange(len(y)))[0].std() < 2  # not 0 to 16


def test_a_newcomer_scales_its_data_itself_where_everybody_does(digits):
    by_client = protofed.run({**TABLE, "run": {"rounds": 1}, "data": {"clients": 3, "normalise": "client"}})
    found = join(by_client, *newcomer(digits, 0), epochs=1)
    inputs = [train.input for train in by_client.state.members.train]
    assert found.model.data.input not in inputs
    assert found.model.data.take(torch.arange(18))[0].mean().abs() < 1e-5


def test_a_newcomer_has_the_net_of_a_client_with_inputs_like_its_own():
    draw = np.random.RandomState(0)
    tables = [(draw.normal(size=(20, wide)), np.arange(20) % 2) for wide in (9, 4)]
    mixed = protofed.Federation(tables).run({"run": {"rounds": 1}})
    found = join(mixed, (draw.normal(size=(20, 4)), np.arange(20) % 2), epochs=1)
    assert found.model.net.shapes["body.fc1.weight"] == (64, 4)


def test_a_newcomer_takes_up_its_own_exported_net(tmp_path):
    from torch import nn

    draw = np.random.RandomState(0)
    data = (draw.normal(size=(20, 4)), np.arange(20) % 2)
    with torch.random.fork_rng(devices=[]):
        module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
        result = protofed.Federation([data], nets=[module]).run({"run": {"rounds": 1}})
    write_model(result.state.model(0), tmp_path / "method.safetensors")
    layers = {name: value.half() for name, value in load_file(tmp_path / "method.safetensors").items()}
    found = join(result, data, net=module, layers=layers, epochs=1)
    assert found.given == ["body.0.bias", "body.0.weight", "head.2.bias", "head.2.weight"]


@pytest.mark.parametrize(
    "schedule",
    [{"schedule": "cosine", "decay_rounds": 2}, {"decay": 0.01}, {"schedule": "polynomial", "decay_rounds": 2}],
)
def test_a_newcomer_trains_with_the_rate_that_a_run_begins_with(schedule, digits):
    """The run has ended with a lower rate."""
    constant, falling = (protofed.run({**TABLE, "train": train, "run": {"rounds": 2}}) for train in ({}, schedule))
    assert falling.state.config.train.rate(2) < 0.6 * constant.state.config.train.rate(2)
    accuracies = [join(run, *newcomer(digits, 2), epochs=5).alone for run in (constant, falling)]
    assert accuracies[0] == accuracies[1] > 0.5


def test_a_newcomer_of_fedavg_starts_from_the_servers_weights(digits):
    shared = protofed.run({**TABLE, "method": {"name": "fedavg"}})
    found = join(shared, *newcomer(digits, 2), epochs=1)
    assert found.accuracy["head"] > found.alone
    assert found.downloaded == 7920


def test_a_newcomer_brings_its_own_net_and_layers(run, digits):
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
        small = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Linear(9, 10))
    found = join(run, *newcomer(digits, 3), net=module, epochs=1)
    assert found.model.net.name == "net (Sequential)"
    with pytest.raises(UserError, match="needs embeddings of the same size"):
        join(run, *newcomer(digits, 3), net=small)
    layers = {name: value for name, value in run.state.model(0).params.items() if name.startswith("body.")}
    warm = join(run, *newcomer(digits, 3), layers={**layers, "head.out.bias": torch.zeros(3)}, epochs=1)
    assert sorted(warm.given) == sorted(layers)
    with pytest.raises(UserError, match="None of the layers given"):
        join(run, *newcomer(digits, 3), layers={"fc": torch.zeros(3)})


def test_join_from_the_command_line(run, digits, command, tmp_path):  # noqa: F811
    (x, y), (x_test, y_test) = newcomer(digits, 4)
    np.savez(tmp_path / "new.npz", x=x[:, 0], y=y, x_test=x_test[:, 0], y_test=y_test)
    folder = str(run.folder)
    code, out, err = command("join", folder, "--data", "new.npz", "--epochs", "2", "--out", "n.safetensors")
    assert (code, err) == (0, "")
    assert out.startswith("The newcomer has 18 training and ")
    assert "It downloaded 150 numbers and trained for 6 steps. Test accuracy: " in out
    assert "Trained alone, from its own layers and for the same number of steps: " in out
    assert out.endswith("Written to n.safetensors.\n")
    words = ("--net", "mlp", "--set", "net.hidden=[32]", "--start", "n.safetensors", "--json")
    found = json.loads(command("join", folder, "--data", "new.npz", *words)[1])
    assert sorted(found["given"]) == ["body.fc2.bias", "head.out.bias", "head.out.weight"]
    assert found["downloaded"] == 150
    assert found["test"] == len(y_test)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "no.npz"], "There is no file no.npz. --data must be an .npz file with x and y, or a table."),
        (["--data", "bad.npz"], "bad.npz is not an .npz file: it is a text file, such as CSV."),
        (
            ["--data", "wide.npz"],
            "The newcomer's data do not fit the data of the run: The inputs have shape [8, 9, 9]; must be [n, 1, 8, 8].",
        ),
        (
            ["--data", "few.npz"],
            "The newcomer has no test examples. Give a test set, or at least five training examples of a class.",
        ),
        (["--data", "half.npz"], "half.npz has no array y_test; it has x, y, x_test."),
        (["--data", "good.npz", "--out", "good.npz"], "good.npz already exists. Give another name."),
        (
            ["--data", "strange.npz"],
            "The newcomer: there is no class 11. Known: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9.",
        ),
        (
            ["--data", "good.npz", "--net", "mpl"],
            'The experiment has a problem:\n  - net.name: there is no "mpl". Did you mean "mlp"? Known: cnn, ',
        ),
        (
            ["--data", "good.npz", "--net", "mlp", "--set", "net.dim=9"],
            "fedproto needs embeddings of the same size: those of the run have 50 numbers, the newcomer's net mlp(dim=9) has 9. Set net.dim=50.",
        ),
        (
            ["--data", "good.npz", "--set", "train.lr=1"],
            "--set train.lr=1: only options of the new client's net can be set: --set net.key=value.",
        ),
        (
            ["--data", "good.npz", "--start", "bad.npz"],
            "bad.npz has no weights: its name must end in .safetensors, ",
        ),
    ],
)
def test_what_cannot_join_is_said(run, words, message, command, tmp_path):  # noqa: F811
    (tmp_path / "bad.npz").write_bytes(b"junk")
    x, y = np.zeros((10, 8, 8)), np.zeros(10, int)
    np.savez(tmp_path / "good.npz", x=x, y=y)
    np.savez(tmp_path / "half.npz", x=x, y=y, x_test=x)
    np.savez(tmp_path / "few.npz", x=x[:4], y=y[:4])
    np.savez(tmp_path / "strange.npz", x=x, y=y + 11)
    np.savez(tmp_path / "wide.npz", x=np.zeros((10, 9, 9)), y=y)
    code, _, err = command("join", str(run.folder), *words)
    assert code == 2
    assert err.startswith(f"protofed: {message}")


def test_prototypes_of_some_classes():
    some = bank({0: [1.0, 2.0], 1: [3.0, 4.0]}).of_classes(torch.tensor([False, True, True]))
    assert some.mean[:, 0].tolist() == [[0, 0], [3, 4], [0, 0]]
    assert some.support[:, 0].tolist() == [0, 1, 0]


def test_layers_are_read_from_safe_files_only(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "a.safetensors")
    torch.save({"a": torch.ones(2)}, tmp_path / "a.pt")
    for name in ("a.safetensors", "a.pt"):
        assert torch.equal(weights.read_weights(tmp_path / name)["a"], torch.ones(2))
    torch.save({"a": Phase(3)}, tmp_path / "code.pt")
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    for name, message in {
        "code.pt": "cannot be read as a state dict that holds only tensors",
        "list.pt": "is not a state dict",
        "junk.safetensors": "cannot be read as a .safetensors file",
        "none.pt": "There is no file",
    }.items():
        with pytest.raises(UserError, match=message):
            weights.read_weights(tmp_path / name)


def test_an_export_has_no_rule_that_was_fitted_to_other_scores_than_those_of_its_net(tmp_path, command):  # noqa: F811
    for name, has_scores in (("fedavg", True), ("fednh", False)):
        experiment = {
            "run": {"rounds": 2},
            "data": {"clients": 2, "limit": 200},
            "eval": {"validation": 0.2},
            "method": {"name": name},
        }
        model = protofed.run(experiment, tmp_path / name).predictor(1)
        assert model.unknown
        assert model.temperatures
        code, out, _ = command("export", name, "--client", "1", "--out", f"{name}.safetensors")
        assert (code, "Careful: the method does not predict with the scores of the net" in out) == (0, not has_scores)
        stored = read_model(tmp_path / f"{name}.safetensors")
        assert (bool(stored.unknown), bool(stored.temperatures)) == (has_scores, has_scores)
