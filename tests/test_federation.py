"""Own arrays and own modules, and what is said about those that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import protofed
from protofed.errors import UserError
from protofed.experiment.config import Config

DRAW = np.random.RandomState(0)


@pytest.fixture(autouse=True)
def _own_nets_draw_where_they_like():
    """Nets of a person's own come from the global generator, and tables from this one: anew for every test."""
    DRAW.seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        yield


def table(rows: int, columns: int = 4, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(rows) % classes
    return DRAW.normal(size=(rows, columns)) + 3 * np.eye(classes, columns)[y], y


class Residual(nn.Module):
    """Not a sequence, and its last layer has a name."""

    def __init__(self, after: bool = False) -> None:
        super().__init__()
        self.first, self.fc, self.after = nn.Linear(4, 4), nn.Linear(4, 3), after

    def forward(self, x):
        out = self.fc(x + torch.relu(self.first(x)))
        return out.softmax(-1) if self.after else out


class Both(nn.Module):
    """Returns (embedding, logits)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        z = self.body(x)
        return z, self.head(z)


def line() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def test_shapes_may_differ_and_labels_may_be_names():
    names = np.array(["low", "mid", "high"])
    wide, small = table(60, 9), table(50, 4)
    federation = protofed.Federation(
        [(wide[0], names[wide[1]]), (small[0], names[small[1]].tolist())], name="two sites"
    )
    result = protofed.run({"run": {"rounds": 15}, "net": {"dim": 8}}, federation=federation)
    assert result.labels == ("high", "low", "mid")
    assert result.summary["dataset"] == "two sites"
    assert set(result.predict(wide[0], client=0)["label"]) <= set(names)
    assert (result.predict(wide[0], client=0)["label"] == names[wide[1]]).mean() > 0.8
    assert result.clients[1]["classes"] == "high low mid"
    assert [row["round"] for row in result.rounds] == list(range(1, 16))


def test_tables_like_those_of_four_hospitals():
    """Unequal hospitals, doubles, one with a class missing and one that is almost empty."""
    hospitals = [table(rows, 13, 2) for rows in (303, 294, 123)]
    hospitals.append((hospitals[0][0][:2], np.zeros(2, dtype=np.int8)))
    result = protofed.run({"run": {"rounds": 5}}, federation=protofed.Federation(hospitals))
    assert [row["train"] + row["test"] for row in result.clients] == [303, 294, 123, 2]
    assert result.summary["accuracy"]["head"]["mean"] > 0.8


def test_a_fifth_of_each_class_is_held_out_always_the_same():
    x, y = table(50)
    first, second = (protofed.Federation([(x, y)]) for _ in range(2))
    assert np.bincount(first.test[0].y).tolist() == [3, 3, 3]
    assert torch.equal(first.test[0].x, second.test[0].x)
    held = {tuple(row) for row in first.test[0].x.tolist()}
    assert held.isdisjoint(tuple(row) for row in first.train[0].x.tolist())
    assert len(first.train[0]) == 41


def test_own_test_sets_and_clients_without_any():
    federation = protofed.Federation([table(20), table(20), ([], [])], test=[table(9), None, ([], [])], nets=[line])
    result = protofed.run({"run": {"rounds": 2}}, federation=federation)
    assert [(row["train"], row["test"]) for row in result.clients] == [(20, 9), (20, 0), (0, 0)]


def test_classes_nobody_has_are_told():
    federation = protofed.Federation([table(20)], classes=5)
    assert federation.labels == (0, 1, 2, 3, 4)
    assert federation.run({"run": {"rounds": 1}}).prototypes.support.flatten().tolist() == [6, 6, 5, 0, 0]


def test_run_folders_of_own_data_are_opened_and_continued_in_python(tmp_path):
    data = [table(30), table(30)]
    federation = protofed.Federation(data, nets=[line()])
    first = federation.run({"run": {"rounds": 2}}, tmp_path / "run")
    x, _ = table(5)
    again = protofed.Result.load(tmp_path / "run", federation=federation)
    np.testing.assert_array_equal(again.predict(x, 0, "prototype"), first.predict(x, 0, "prototype"))
    assert (again.summary, again.rounds, again.clients) == (first.summary, first.rounds, first.clients)
    more = federation.run({"run": {"rounds": 4}}, tmp_path / "run", resume=True)
    assert more.summary["rounds"] == 4
    with pytest.raises(UserError, match="nets that were given in Python"):
        protofed.Result.load(tmp_path / "run")
    other = protofed.Federation([table(30), table(30)], nets=[line()])
    with pytest.raises(UserError, match="made with other data or nets"):
        other.run({"run": {"rounds": 5}}, tmp_path / "run", resume=True)
    with pytest.raises(UserError, match="made with other data or nets"):
        protofed.Result.load(tmp_path / "run", federation=other)
    same = protofed.Federation(data, nets=[line()])
    with pytest.raises(UserError, match="was started with other weights than its nets have now"):
        same.run({"run": {"rounds": 5}}, tmp_path / "run", resume=True)
    opened = protofed.Result.load(tmp_path / "run", federation=same)  # the trained weights are all there
    np.testing.assert_array_equal(opened.predict(x, 0), more.predict(x, 0))


def test_own_arrays_with_nets_of_the_experiment_need_nothing_to_predict(tmp_path):
    result = protofed.Federation([table(30)]).run({"run": {"rounds": 2}}, tmp_path / "run")
    x, _ = table(5)
    np.testing.assert_array_equal(protofed.Result.load(tmp_path / "run").predict(x, 0), result.predict(x, 0))


X, Y = table(6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": []}, "data: got no clients. Give a pair (x, y) per client."),
        ({"data": [X]}, "data[0]: got a ndarray; must be a pair (x, y)."),
        ({"data": [(X, Y), (X, Y[:4])]}, "data[1]: got inputs [6, 4] and labels [4]; must be [n, ...] and [n]."),
        ({"data": [(X[:, 0], Y)]}, "data[0]: got inputs [6] and labels [6]; must be [n, ...] and [n]."),
        ({"data": [(X, Y)], "nets": line()}, "nets: got a Sequential; must be a list of nets, as nets=[net]."),
        ({"data": [(X, Y)] * 2, "nets": (line(), line())}, "nets: got a tuple; must be a list of nets, as nets=[net]."),
        (
            {"data": [(X, Y)], "nets": [nn.Sequential(nn.Linear(4, 3))]},
            "nets[0] has only one layer with parameters, so that the embedding would be the raw input and prototypes would be means of raw inputs. Add a layer before it, or specify (nn.Identity(), layer) if the inputs are features.",
        ),
        ({"data": [(X, Y / 2)]}, "data[0], labels: got the label 0.5; labels must be whole numbers or names."),
        ({"data": [(X.astype(str), Y)]}, "data[0]: its inputs are of type <U32; they must be numbers."),
        (
            {"data": [(X, Y - 1)]},
            "data[0]: got the label -1; labels must be 0 or more. Leave out examples without a label, or renumber the labels of all clients.",
        ),
        ({"data": [(X, Y)], "classes": 2}, "data[0]: there is no class 2. Known: 0, 1."),
        ({"data": [(X, Y)], "classes": 0}, "classes: got 0; must be 1 or more, or None."),
        (
            {"data": [(X, Y.astype(str))], "classes": 3},
            "classes: got 3, but the labels are names; must be the list of names, or None.",
        ),
        (
            {"data": [(X, np.array(["cat"] * 6))], "classes": ["cats", "dogs"]},
            "data[0]: there is no class 'cat'. Did you mean \"cats\"? Known: cats, dogs.",
        ),
        ({"data": [(X, Y)], "classes": ["a", "a"]}, "classes: got 'a' more than once. Give each class once."),
        (
            {"data": [(X, Y), (X, Y.astype(str))]},
            "data: some clients' labels are names, others' are whole numbers. Use the same kind for all.",
        ),
        ({"data": [([], [])]}, "data: no client has inputs of shape [n, ...]. Give at least one client examples."),
        (
            {"data": [(X, Y)], "test": [(X, Y)] * 2},
            "test: got 2 pairs for 1 clients. Give one pair per client, or None.",
        ),
        (
            {"data": [(X, Y)], "test": [(X[:, :3], Y)]},
            "test[0]: its inputs have shape (3,), but data[0]'s have (4,). Give both the same shape.",
        ),
        (
            {"data": [(X, Y)] * 3, "nets": [line(), line()]},
            "nets: got 2 for 3 clients. Give one for all, or one per client.",
        ),
        (
            {"data": [(X, Y)], "nets": ["mlp"]},
            "nets[0] is a str; a net is a module, (module, name of its last layer), (body, head), or a function that returns one of these.",
        ),
        ({"data": [(X, Y)], "nets": [(line(), "fc")]}, "nets[0] has no layer 'fc'. It has: 0, 1, 2."),
        (
            {"data": [(X, Y)], "nets": [Residual()]},
            "nets[0] (Residual) returns a Tensor; it must return (embedding, logits). Change it, or specify (module, name of its last layer); its layers are first, fc.",
        ),
        (
            {"data": [(X, Y)], "nets": [(Residual(after=True), "fc")]},
            "nets[0] (Residual) computes more after the layer that was named as its last. Name the layer that comes last, or let it return (embedding, logits).",
        ),
        (
            {"data": [(X, Y)], "nets": [nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 10))]},
            "nets[0] (Sequential) returns embeddings [2, 5] and logits [2, 10] for 2 inputs; they must be [2, dim] and [2, 3], because there are 3 classes. Change the net, or set the classes of the federation.",
        ),
        ({"data": [(X, Y)], "nets": [nn.Sequential(nn.ReLU())]}, "nets[0] has no parameters: it cannot learn."),
    ],
)
def test_what_does_not_fit_is_said(given, message):
    with pytest.raises(UserError) as refused:
        protofed.Federation(**given)
    assert str(refused.value) == message


def test_missing_values_and_misfits_say_where():
    x = X.copy()
    x[2, 1] = np.nan
    with pytest.raises(UserError) as refused:
        protofed.Federation([(X, Y), (x, Y)])
    assert str(refused.value) == (
        "data[1], inputs: 1 of 24 values are missing (NaN), in x[:, 1] (1). Fill them in, or delete these rows."
    )
    with pytest.raises(UserError) as refused:
        protofed.Federation([(X, Y)] * 2, nets=[line(), nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))])
    assert str(refused.value).startswith("nets[1] cannot be used with inputs of shape (4,): mat1 and mat2 shapes")


@pytest.mark.parametrize("change", ["activation", "who has which", "shape", "labels"])
def test_a_run_is_not_continued_with_other_nets_or_shapes(change, tmp_path):
    data, (a, b) = [table(20), table(20), table(20)], (line(), line())
    federation = protofed.Federation(data, nets=[a, a, b])
    federation.run({"run": {"rounds": 1}}, tmp_path / "run")
    other = {"data": data, "nets": [a, a, b]}
    if change == "activation":
        tanh = nn.Sequential(a[0], nn.Tanh(), a[2])
        other["nets"] = [tanh, tanh, b]
    elif change == "who has which":
        other["nets"] = [a, b, b]
    elif change == "shape":
        folded = nn.Sequential(nn.Flatten(), a[0], nn.ReLU(), a[2])
        other = {"data": [(x.reshape(-1, 2, 2), y) for x, y in data], "nets": [folded, folded, b]}
        other["nets"][2] = nn.Sequential(nn.Flatten(), b[0], nn.ReLU(), b[2])
    else:
        other["classes"] = [0, 2, 1]
    with pytest.raises(UserError, match="made with other data or nets"):
        protofed.Federation(**other).run({"run": {"rounds": 2}}, tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": [([[1, 2], [3]], [0, 1])]}, "data[0]: it cannot be read as an array: "),
        ({"data": [(X, 3)]}, "data[0]: got inputs [6, 4] and labels []; must be [n, ...] and [n]."),
        ({"data": [(X, Y)], "test": [5]}, "test[0]: got a int; must be a pair (x, y)."),
        (
            {"data": [(X, np.array([0, 1, "b", 2, 3, 4], dtype=object))]},
            "data[0]: it cannot be read as an array: text and numbers are mixed.",
        ),
        (
            {"data": [(X, Y + 20_000_000)]},
            "data: label 20000002 would make 20,000,003 classes. Give `classes`, the list of all labels.",
        ),
        ({"data": [(X, Y)], "nets": [lambda size: line()]}, "nets[0] cannot be used with inputs of shape (4,): "),
    ],
)
def test_odder_inputs_are_messages_too(given, message):
    with pytest.raises(UserError) as refused:
        protofed.Federation(**given)
    assert str(refused.value).startswith(message)


def test_arrays_of_other_kinds_are_taken(tmp_path):
    names = np.array(["a", "b", "c"], dtype=object)[Y]
    assert protofed.Federation([(X, names)]).labels == ("a", "b", "c")
    assert protofed.Federation([(X.tolist(), Y.tolist())]).labels == (0, 1, 2)
    big = protofed.Federation([(X.astype(">f8"), Y.astype(">i4"))], classes=np.int64(3))
    big.run({"run": {"rounds": 1}}, tmp_path / "big")
    assert protofed.Federation([(X, Y)], classes=["x", "y", "z"]).labels == ("x", "y", "z")  # by their places
    assert protofed.Federation([(torch.tensor(X, requires_grad=True).bfloat16(), Y.astype(float))]).labels == (0, 1, 2)
    assert protofed.Federation(iter([(X, Y > 1)])).labels == (0, 1)
    assert protofed.Federation([(torch.tensor(X), torch.tensor(Y))], classes=np.arange(3)).labels == (0, 1, 2)


def test_a_sample_is_of_the_federations_clients():
    federation = protofed.Federation([table(12)] * 30)
    assert len(federation.run({"run": {"rounds": 1, "sample": 25}}).rounds[0]["clients"]) == 25
    with pytest.raises(UserError, match=r"run.sample: got 10, but there are 3 clients"):
        protofed.Federation([table(12)] * 3).run({"run": {"sample": 10}})


def test_given_is_not_a_name_for_an_experiment_file():
    with pytest.raises(UserError, match=r'partition\.name: there is no "given"'):
        Config.of({"partition": {"name": "given"}})
    with pytest.raises(UserError, match="nets that were given in Python"):
        protofed.run({"net": {"name": "given"}})
    with pytest.raises(UserError, match="data that were given in Python"):
        protofed.run({"data": {"name": "given"}})


def test_what_is_no_federation_is_said():
    with pytest.raises(UserError, match=r"federation: got a list; must be a protofed.Federation"):
        protofed.run({}, federation=[(X, Y)])


def test_numbers_of_numpy_are_numbers():
    made = Config.of(
        {"run": {"rounds": np.int64(3)}, "train": {"lr": np.float64(0.5)}, "net": {"hidden": [np.int32(4)]}}
    )
    assert (made.run.rounds, made.train.lr, made.nets[0].design.hidden) == (3, 0.5, (4,))


@pytest.mark.parametrize(
    "section",
    [
        {"data": {"encoder": "efficientnet_lite0"}},
        {"data": {"normalise": "client"}},
        {"data": {"limit": 5}},
        {"eval": {"test": "own"}},
        {"eval": {"validation": 0.1}},
    ],
)
def test_options_of_named_data_are_refused_for_own_arrays(section):
    with pytest.raises(UserError, match=r"it applies to named datasets only\. A federation's arrays are used as given"):
        protofed.Federation([table(12)]).run(section)


def test_infinite_halves_are_refused_and_ordinary_ones_are_not():
    x = np.ones((20, 4), np.float16)
    protofed.Federation([(x, np.arange(20) % 2)])
    x[3, 2] = np.inf
    with pytest.raises(UserError, match=r"data\[0\], inputs: 1 of 80 values are infinite"):
        protofed.Federation([(x, np.arange(20) % 2)])


def test_labels_that_are_too_large_to_be_exact_are_refused_as_such():
    with pytest.raises(UserError, match=r"data\[0\], labels: got the label 1e\+20, which is too large to be exact"):
        protofed.Federation([(X, np.full(len(X), 1e20))])


@pytest.mark.parametrize("part", [0, 1])
def test_masked_values_are_refused_and_masked_arrays_without_any_are_not(part):
    x, y = np.ma.array(np.zeros((4, 2))), np.ma.array([0, 1, 0, 1])
    protofed.Federation([(x, y)])
    (x, y)[part][0] = np.ma.masked
    with pytest.raises(UserError, match="it has masked values"):
        protofed.Federation([(x, y)])
