"""Joining from the prototypes alone: the file that the server would send, and what `join` writes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import protofed
from protofed.data.sources import SOURCES
from protofed.errors import UserError
from protofed.experiment.unknown import UnknownRule
from protofed.messages import flatten
from protofed.models.export import write_model
from protofed.models.invitation import Invitation, read_invitation, write_invitation
from protofed.models.join import join
from protofed.models.model_files import read_model, write_newcomer
from test_cli import protofed as command  # noqa: F401


def points(rows: int, *labels: str, columns: int = 4, seed: int = 0):
    draw = np.random.RandomState(seed)
    y = np.arange(rows) % len(labels)
    return draw.normal(size=(rows, columns)) + 3 * np.eye(len(labels), columns)[y], np.array(labels)[y]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.set_num_threads(1)
    federation = protofed.Federation([points(60, "a", "b"), points(60, "b", "c", columns=5)])
    return federation.run({"run": {"rounds": 3}}, tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def file(run, tmp_path):
    write_invitation(Invitation.of(run), tmp_path / "prototypes.safetensors")
    return tmp_path / "prototypes.safetensors"


def changed_metadata(file, key, change):
    """Change the JSON that the file has under this key in its metadata; a text is written as it is."""
    with safe_open(file, "pt") as content:
        metadata = content.metadata()
        tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    value = change(json.loads(metadata[key]))
    metadata[key] = value if isinstance(value, str) else json.dumps(value)
    save_file(tensors, file, metadata)


def test_the_file_has_the_servers_message_and_no_clients_weights(run, file):
    with safe_open(file, "pt") as content:
        assert sorted(content.keys()) == [f"prototypes/{part}" for part in ("mean", "rows", "shape", "support")]
        assert torch.equal(content.get_tensor("prototypes/mean"), run.prototypes.mean[:, 0])
        about = json.loads(content.metadata()["invitation"])
    assert about["labels"] == ["a", "b", "c"]
    assert about["needs"] == "embeddings of 50 numbers"
    assert "data" not in about


def test_joining_from_the_file_gives_the_model_that_the_run_folder_gives(run, file):
    data = points(40, "a", "c", seed=1)
    from_file, from_run = (join(source, data, epochs=2) for source in (read_invitation(file), run))
    assert from_file.figures() == from_run.figures()
    for name, value in from_run.model.params.items():
        assert torch.equal(value, from_file.model.params[name])


@pytest.mark.parametrize("privacy", [{}, {"noise": 1.0, "encoder": "frozen"}])
def test_a_newcomer_has_the_initial_weights_and_the_privacy_of_the_run_from_all_sources(privacy, tmp_path):
    small = {"data": {"clients": 3, "limit": 90}, "partition": {"name": "iid"}}
    before = protofed.run({**small, "run": {"rounds": 2}, "method": {"name": "fedavg"}})
    write_model(before.state.model(0), tmp_path / "w.safetensors")
    table = {**small, "run": {"rounds": 1}, "net": {"weights": str(tmp_path / "w.safetensors")}, "privacy": privacy}
    result = protofed.run({**table, "method": {"name": "fedproto"}}, tmp_path / "run")
    write_invitation(Invitation.of(result), tmp_path / "i.safetensors")
    digits = SOURCES["digits"]("").train
    data = digits.x[:40].numpy(), digits.y[:40].numpy()
    newcomers = [join(result, data, epochs=1), join(tmp_path / "run", data, epochs=1)]
    (tmp_path / "w.safetensors").unlink()  # the file has all that a newcomer needs
    newcomers.append(join(tmp_path / "i.safetensors", data, epochs=1))
    for other in newcomers[1:]:
        assert other.figures() == newcomers[0].figures()
        for name, value in newcomers[0].model.params.items():
            assert torch.equal(value, other.model.params[name])
    if privacy:
        body = result.state.kept[0].params["body.fc1.weight"]
        assert torch.equal(newcomers[0].model.params["body.fc1.weight"], body)
    with pytest.raises(UserError, match=r"There is no file .*w\.safetensors"):
        join(tmp_path / "run", data, epochs=1)


@pytest.mark.parametrize(
    "method", ["fedavg", "fedper", "fednh", "fpl", "mpfedcl", "protomargin", "fedtgp", "local", "creff"]
)
def test_every_kind_of_message_goes_through_the_file(method, tmp_path):
    federation = protofed.Federation([points(40, "a", "b"), points(40, "b", "a", seed=2)])
    result = federation.run({"run": {"rounds": 1}, "method": {"name": method}})
    invitation = Invitation.of(result)
    write_invitation(invitation, tmp_path / "i.safetensors")
    sent, read = flatten(invitation.message), flatten(read_invitation(tmp_path / "i.safetensors").message)
    assert sent.keys() == read.keys()
    assert all(torch.equal(value, read[name]) for name, value in sent.items())
    joined = join(read_invitation(tmp_path / "i.safetensors"), points(30, "a", "b", seed=3), epochs=1)
    write_newcomer(joined, tmp_path / "n.safetensors")
    x = points(20, "a", "b", seed=4)[0]
    for way in joined.model.ways():
        expected, found = joined.model.predict(x, way), read_model(tmp_path / "n.safetensors").predict(x, way)
        np.testing.assert_array_equal(found["scores"], expected["scores"])


def test_predict_reads_what_join_wrote(run, file, command, tmp_path):  # noqa: F811
    x, y = points(40, "a", "c", seed=1)
    np.savez("mine.npz", x=x, y=y)
    np.save("x.npy", x)
    code, _, err = command("join", str(file), "--data", "mine.npz", "--epochs", "2", "--out", "mine.safetensors")
    assert (code, err) == (0, "")
    code, _, err = command("predict", "mine.safetensors", "--input", "x.npy", "--out", "answers.csv")
    assert (code, err) == (0, "")
    header, *rows = (tmp_path / "answers.csv").read_text().splitlines()
    assert header == "label,probability_a,probability_b,probability_c,nearest_prototype,distance,unknown"
    joined = join(run, (x, y), epochs=2)
    assert [row.split(",")[0] for row in rows] == joined.model.predict(x)["label"].tolist()
    assert [row.split(",")[-1] for row in rows] == joined.model.predict(x)["unknown"].astype(str).tolist()
    for row in rows:
        assert sum(map(float, row.split(",")[1:4])) == pytest.approx(1, abs=3e-9)


def test_an_exported_model_predicts_from_its_file(run, tmp_path, command):  # noqa: F811
    x = points(10, "a", "b")[0]
    np.save("x.npy", x)
    assert command("export", str(run.folder), "--client", "0", "--out", "zero.safetensors")[0] == 0
    from_file, from_run = read_model(tmp_path / "zero.safetensors").predict(x), run.predict(x, 0)
    for field in ("label", "scores"):
        np.testing.assert_array_equal(from_file[field], from_run[field])
    code, _, err = command("predict", "zero.safetensors", "--input", "x.npy", "--by", "prototype")
    assert (code, err) == (2, 'protofed: This model cannot predict by "prototype". Known: head.\n')


def test_new_classes_are_an_explained_error_or_learned_by_the_newcomer_alone(run, file):
    data = points(60, "a", "z", seed=5)
    with pytest.raises(UserError) as caught:
        join(read_invitation(file), data, epochs=1)
    assert str(caught.value) == (
        "The newcomer: there is no class 'z'. Known: a, b, c. To add new classes for this client, use --new-classes."
    )
    for source in (read_invitation(file), run):
        joined = join(source, data, epochs=20, new_classes=True)
        assert joined.model.labels == ("a", "b", "c", "z")
        assert joined.downloaded == 50  # the prototype of a alone
        down = joined.state.down.prototypes
        assert (down.support[:, 0] > 0).tolist() == [True, False, False, True]
        assert torch.equal(down.mean[0], run.prototypes.mean[0])
        for way in ("head", "prototype"):
            assert joined.accuracy[way] > 0.8
        x, y = points(40, "a", "z", seed=6)
        assert (joined.model.predict(x, "prototype")["label"] == y).mean() > 0.8


def test_new_classes_need_a_method_of_prototypes(tmp_path):
    federation = protofed.Federation([points(40, "a", "b"), points(40, "b", "a", seed=2)])
    result = federation.run({"run": {"rounds": 1}, "method": {"name": "fedavg"}})
    with pytest.raises(UserError, match="New classes need a method that sends prototypes alone, such as fedproto, but"):
        join(result, points(30, "a", "z"), new_classes=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("join", "missing.safetensors"), "There is no folder missing.safetensors. Give the --out of an earlier `protofed run`."),
        (("join", "other.safetensors"), "other.safetensors has no prototypes that a client could join with: it is another file. Give the file that `protofed export DIR --prototypes FILE.safetensors` wrote, or a run folder."),
        (("join", "mine.npz"), "mine.npz cannot be read as safetensors: "),
        (("predict", "other.safetensors"), "other.safetensors does not say what its model is: it is another file. Give a run folder, or a .safetensors file that `protofed join` or `protofed export` wrote."),
        (("export", "RUN"), "Give either --client, to export its model, or --prototypes FILE.safetensors alone."),
        (("export", "RUN", "--prototypes", "p.npz"), "--prototypes: got p.npz; its name must end in .safetensors."),
        (("join", "FILE", "--set", "net.dim=9"), "fedproto needs embeddings of the same size: those of the run have 50 numbers, the newcomer's net mlp(dim=9) has 9. Set net.dim=50."),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said(run, file, command, words, message):  # noqa: F811
    x, y = points(40, "a", "c", seed=1)
    np.savez("mine.npz", x=x, y=y)
    save_file({"a": torch.zeros(2)}, "other.safetensors")
    words = [{"RUN": str(run.folder), "FILE": str(file)}.get(word, word) for word in words]
    more = {"join": ("--data", "mine.npz"), "predict": ("--input", "x.npy"), "export": ()}[words[0]]
    np.save("x.npy", x)
    code, _, err = command(*words, *more)
    assert code == 2
    assert err.removeprefix("protofed: ").startswith(message)


@pytest.mark.parametrize("rule", ["softmax", "energy", "prototype"])
def test_the_rule_for_unknown_inputs_travels_with_invitations_and_models(rule, tmp_path):
    federation = protofed.Federation([points(80, "a", "b"), points(80, "b", "c", seed=2)])
    section = {"unknown": rule, "false_alarms": 0.3}
    result = federation.run({"run": {"rounds": 1}, "eval": section})
    write_invitation(Invitation.of(result), tmp_path / "i.safetensors")
    read = read_invitation(tmp_path / "i.safetensors")
    assert (read.config.eval.unknown, read.config.eval.false_alarms) == (rule, 0.3)
    data = points(60, "a", "c", seed=1)
    from_file, from_run = (join(source, data, epochs=1) for source in (read, result))
    x = points(50, "a", "b", "c", seed=4)[0]
    expected = from_run.model.predict(x)
    assert 0 < expected["unknown"].sum() < 50
    np.testing.assert_array_equal(from_file.model.predict(x), expected)
    write_newcomer(from_file, tmp_path / "n.safetensors")
    np.testing.assert_array_equal(read_model(tmp_path / "n.safetensors").predict(x), expected)
    write_model(result.predictor(0), tmp_path / "zero.safetensors")
    np.testing.assert_array_equal(read_model(tmp_path / "zero.safetensors").predict(x), result.predict(x, 0))


def test_without_a_rule_nothing_is_marked(tmp_path):
    result = protofed.Federation([points(40, "a", "b")]).run({"run": {"rounds": 1}, "eval": {"unknown": "none"}})
    write_invitation(Invitation.of(result), tmp_path / "i.safetensors")
    joined = join(read_invitation(tmp_path / "i.safetensors"), points(40, "a", "b", seed=1), epochs=1)
    assert joined.model.unknown is None


def test_an_invitation_without_a_rule_is_of_an_earlier_version(file):
    changed_metadata(file, "invitation", lambda about: {key: about[key] for key in about if key != "eval"})
    assert read_invitation(file).config.eval.unknown == "softmax"


def test_the_newcomers_limit_comes_from_test_examples_of_the_classes_it_trains_on(run):
    x, y = points(60, "a", "c", seed=1)
    test_x, test_y = points(60, "a", "c", seed=2)
    far = (100 * points(60, "b", seed=3)[0], np.array(["b"] * 60))  # no training examples are of this class
    more = (np.concatenate([test_x, far[0]]), np.concatenate([test_y, far[1]]))
    limits = [join(run, (x, y), test, epochs=1).model.unknown.limit for test in ((test_x, test_y), more)]
    assert limits[0] == limits[1]


def test_the_rule_of_a_net_with_some_outputs_is_about_these_outputs():
    rule = UnknownRule("prototype", torch.tensor([False, True, True]), 2.0, torch.eye(3), torch.arange(3.0))
    assert rule.of_outputs(()) is rule
    assert rule.of_outputs((2, 1)).as_json() == {
        "rule": "prototype",
        "classes": [0, 1],
        "limit": 2.0,
        "means": [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]],
        "spreads": [2.0, 1.0],
    }


@pytest.fixture(scope="module")
def newcomer(run):
    return join(run, points(40, "a", "c", seed=1), epochs=1)


def without(key):
    return lambda about: {name: value for name, value in about.items() if name != key}


@pytest.mark.parametrize(
    "change",
    [
        lambda _: "[]",
        lambda _: "not json",
        lambda _: "null",
        without("labels"),
        without("method"),
        lambda about: {**about, "shapes": 3},
        lambda about: {**about, "steps": [{}]},
        lambda about: {**about, "table": {"nothing": 1}},
    ],
)
def test_an_invitation_with_damaged_metadata_is_said(change, file):
    changed_metadata(file, "invitation", change)
    with pytest.raises(UserError) as caught:
        read_invitation(file)
    assert str(caught.value).startswith(f"{file} is damaged: its metadata cannot be understood (")
    assert str(caught.value).endswith(
        "). Give the file that `protofed export DIR --prototypes FILE.safetensors` wrote, or a run folder."
    )


OWN_NETS = """
from dataclasses import dataclass
from torch import nn

@dataclass(frozen=True)
class Design:
    width: int = 6

    def build(self, shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, self.width), nn.ReLU()), nn.Linear(self.width, classes)

def module(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, classes))
"""


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        ("Design", 'its net, Design, cannot be built again: net.name: there is no "Design". Known: cnn, '),
        ("module", "its net, module, is a module from outside protofed, which is not in the file, so "),
    ],
)
def test_a_file_with_a_net_from_an_experiment_file_says_why_it_cannot_predict(net, reason, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "own_nets.py").write_text(OWN_NETS)
    table = {"run": {"rounds": 1}, "data": {"clients": 2, "limit": 60}, "partition": {"name": "iid"}}
    result = protofed.run({**table, "net": {"name": f"{tmp_path}/own_nets.py:{net}"}})
    write_model(result.predictor(0), tmp_path / "n.safetensors")
    with pytest.raises(UserError) as caught:
        read_model(tmp_path / "n.safetensors")
    assert str(caught.value).startswith(f"{tmp_path / 'n.safetensors'}: {reason}")
    assert "given in Python" not in str(caught.value)
    assert "oad its tensors into your module" in str(caught.value)


def test_a_file_with_a_net_of_another_version_says_so(run, tmp_path):
    file = tmp_path / "n.safetensors"
    write_model(run.predictor(0), file)
    changed_metadata(file, "source", lambda source: {**source, "depth": 3})
    with pytest.raises(UserError) as caught:
        read_model(file)
    said = f"{file}: its net, mlp, cannot be built again: net.depth: unknown key of mlp. Known: bias, dim, "
    assert str(caught.value).startswith(said)
    versions = f"written by protofed {protofed.__version__}, this is {protofed.__version__}."
    assert str(caught.value).endswith(f" The file was {versions} Use the version that wrote it.")


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("labels", lambda _: "not json"),
        ("labels", lambda _: 3),
        ("input", lambda _: {}),
        ("input", lambda _: []),
        ("input", lambda about: {**about, "shape": "x"}),
        ("newcomer", lambda _: []),
        ("newcomer", lambda _: "{"),
        ("newcomer", without("same")),
        ("newcomer", without("experiment")),
        ("newcomer", lambda about: {**about, "same": {"params/x": "not there"}}),
        ("unknown", lambda _: {"rule": "softmax"}),
        ("unknown", lambda about: {**about, "classes": [77]}),
    ],
)
def test_a_model_with_damaged_metadata_is_said(key, change, newcomer, tmp_path):
    if key == "labels":  # the labels of a newcomer are with its other metadata
        write_model(newcomer.model, tmp_path / "n.safetensors")
    else:
        write_newcomer(newcomer, tmp_path / "n.safetensors")
    changed_metadata(tmp_path / "n.safetensors", key, change)
    with pytest.raises(UserError) as caught:
        read_model(tmp_path / "n.safetensors")
    assert str(caught.value).startswith(f"{tmp_path / 'n.safetensors'} is damaged: its metadata cannot be understood (")
    assert str(caught.value).endswith(
        "). Give a run folder, or a .safetensors file that `protofed join` or `protofed export` wrote."
    )
