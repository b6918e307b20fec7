"""Tables of clients: the recipe of each column, different columns, names, federated scaling, and predictions of raw rows."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import protofed
from protofed.data.table.client_tables import TableOptions, read_client_table, read_frames
from protofed.data.table.columns import find_columns
from protofed.data.table.recipe import RARE, ColumnMoments, Recipe, fit_recipe, mean_and_deviation
from protofed.errors import UserError
from protofed.experiment.calibration import fit_temperature
from protofed.experiment.config import Config
from protofed.experiment.members import Members
from protofed.experiment.table_members import client_examples
from protofed.models.invitation import Invitation, read_invitation, write_invitation
from protofed.models.join import join
from protofed.models.newcomer_data import newcomer_data, read_newcomer
from test_cli import protofed as command  # noqa: F401
from test_invitations import changed_metadata


def rows(count: int, seed: int, classes=("ill", "well"), columns=("age", "sex", "dose")) -> pd.DataFrame:
    """A table in which the dose says the class; some values are missing."""
    draw = np.random.RandomState(seed)
    y = np.arange(count) % len(classes)
    table = pd.DataFrame(
        {
            "age": np.where(draw.rand(count) < 0.1, np.nan, np.round(draw.normal(50, 10, count))),
            "sex": np.array(["f", "m"])[draw.randint(0, 2, count)],
            "dose": 3.0 * y + draw.normal(size=count),
        }
    )[list(columns)]
    return table.assign(outcome=np.array(classes)[y])


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sites").mkdir()
    rows(60, 0).to_csv(tmp_path / "sites" / "north.csv", index=False)
    rows(50, 1, columns=("dose", "sex")).to_parquet(tmp_path / "sites" / "south.parquet")
    rows(40, 2, classes=("ill", "grave")).to_feather(tmp_path / "sites" / "west.feather")
    return tmp_path / "sites"


def experiment(folder, **data) -> dict:
    return {"run": {"rounds": 2}, "data": {"name": "table", "root": str(folder), "target": "outcome", **data}}


def kinds(frame: pd.DataFrame, categories=()) -> dict:
    return {name: column.kind for name, column in find_columns(frame, "table", categories).items()}


def test_a_recipe_is_what_one_computes_by_hand():
    frame = pd.DataFrame({"a": [1.0, np.nan, 3.0, 8.0], "b": ["x", "x", "x", "y"], "c": [True, False, True, True]})
    recipe = fit_recipe(frame, kinds(frame), "t")
    assert recipe.inputs == ["a", "a missing", "b=x", "b=other", "c"]  # y has fewer than three rows
    a, b, c = recipe.steps
    assert (a.fill, a.mean, a.std) == (3.0, 4.0, pytest.approx(np.sqrt(26 / 3)))  # median of 1, 3, 8
    assert (b.values, c.mean) == (("x",), 0.75)
    new = pd.DataFrame({"c": [False, True], "b": ["unseen", None], "a": [np.nan, 4.0], "more": [1, 2]})
    expected = [
        [(3 - 4) / np.sqrt(26 / 3), 1, 0, 1, -0.75 / np.sqrt(3 / 16)],
        [0, 0, 0, 0, 0.25 / np.sqrt(3 / 16)],
    ]
    np.testing.assert_allclose(recipe.transform(new, "new"), expected, rtol=1e-6)


def test_a_recipe_transforms_as_scikit_learns_transformers_do():
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    train, new = rows(80, 3), rows(30, 4)
    new.loc[0, "sex"] = "unseen"
    train.loc[:1, "sex"] = "rare"
    numbers = make_pipeline(StandardScaler(), SimpleImputer(strategy="median", add_indicator=True))
    encoder = OneHotEncoder(min_frequency=RARE, handle_unknown="infrequent_if_exist", sparse_output=False)
    theirs = ColumnTransformer([("n", numbers, ["age", "dose"]), ("c", encoder, ["sex"])]).fit(train)
    frame = train[["age", "dose", "sex"]]
    recipe = fit_recipe(frame, kinds(frame), "outcome")
    assert recipe.inputs == ["age", "age missing", "dose", "sex=f", "sex=m", "sex=other"]
    np.testing.assert_allclose(
        recipe.transform(new, "new")[:, [0, 2, 1, 3, 4, 5]], theirs.transform(new), rtol=1e-6, atol=1e-6
    )


def test_a_recipe_read_from_json_transforms_to_the_same_bits():
    train, new = rows(80, 3), rows(30, 4)
    recipe = fit_recipe(train, kinds(train), "outcome")
    again = Recipe.of_json(json.loads(json.dumps(recipe.json())))
    assert again == recipe
    np.testing.assert_array_equal(again.transform(new, "new"), recipe.transform(new, "new"))


def test_numbers_that_are_categories_are_the_same_texts_with_and_without_missing_values():
    whole, with_missing = pd.DataFrame({"a": [1, 2] * 4}), pd.DataFrame({"a": [1, None, 2, 1, 2, 2, 1, 1]})
    for frame in (whole, with_missing):
        assert fit_recipe(frame, kinds(frame, ("a",)), "").steps[0].values == ("1", "2")


def test_clients_have_names_their_own_columns_and_recipes_of_their_training_rows(folder, tmp_path):
    result = protofed.run({**experiment(folder), "eval": {"validation": 0.25}}, tmp_path / "run")
    members = result.state.members
    assert members.names == ("north", "south", "west")
    assert members.labels == ("grave", "ill", "well")
    assert [net.shape for net in members.nets] == [(6,), (4,), (6,)]  # age, missing?, f, m, other, dose
    frame = pd.read_csv(folder / "north.csv")
    part = members.parts[0]
    assert not set(part.train) & {*part.test, *part.validation}
    assert len(part.train) + len(part.test) + len(part.validation) == 60
    dose = frame["dose"].iloc[part.train]
    step = next(step for step in members.recipes[0].steps if step.name == "dose")
    assert (step.mean, step.std) == (pytest.approx(dose.mean()), pytest.approx(dose.std(ddof=0)))
    assert [row["name"] for row in result.clients] == ["north", "south", "west"]
    assert (tmp_path / "run" / "clients.csv").read_text().startswith("client,name,net,classes,train,test,accuracy_head")
    assert (pd.read_csv(tmp_path / "run" / "clients.csv")["temperature_head"] > 0).all()


def test_a_method_that_averages_nets_refuses_different_columns(folder):
    table = {**experiment(folder), "method": {"name": "fedavg"}}
    with pytest.raises(UserError, match="fedavg cannot average nets of different shapes: client 0 has mlp for inputs"):
        protofed.run(table)


def test_the_run_folder_predicts_raw_rows_without_the_tables(folder, tmp_path, command):  # noqa: F811
    result = protofed.run({**experiment(folder), "eval": {"validation": 0.2}}, tmp_path / "run")
    new = rows(9, 7, columns=("sex", "dose")).drop(columns="outcome")
    expected = result.predict(new, "south", "prototype")
    probabilities = result.predictor("south").probabilities(result.predict(new, "south"))
    for file in folder.iterdir():
        file.unlink()
    new.to_csv(tmp_path / "new.csv", index=False)
    again = protofed.Result.load(tmp_path / "run").predict(new, "south", "prototype")
    np.testing.assert_array_equal(again, expected)
    words = ("predict", "run", "--client", "south", "--input", "new.csv", "--out", "answers.csv")
    assert command(*words)[0] == 0
    answers = pd.read_csv(tmp_path / "answers.csv")
    assert list(answers)[:6] == [
        "label",
        "probability_grave",
        "probability_ill",
        "probability_well",
        "nearest_prototype",
        "distance",
    ]
    np.testing.assert_allclose(answers.filter(like="probability_"), probabilities, atol=1e-9)
    np.testing.assert_allclose(answers.filter(like="probability_").sum(axis=1), 1, atol=1e-8)
    assert (answers["nearest_prototype"] == expected["label"]).all()
    np.testing.assert_allclose(answers["distance"], expected["distance"], atol=1e-6)
    assert (answers["label"] == result.predict(new, "south")["label"]).all()


@pytest.mark.slow
def test_exported_files_carry_the_recipe_and_the_class_names(folder, tmp_path, command):  # noqa: F811
    onnx = pytest.importorskip("onnx")
    result = protofed.run(experiment(folder), tmp_path / "run")
    new = rows(9, 7, columns=("sex", "dose"))
    for name in ("south.onnx", "south.safetensors"):
        assert command("export", "run", "--client", "south", "--out", name)[0] == 0
    model = onnx.load(tmp_path / "south.onnx")
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(metadata["labels"]) == ["grave", "ill", "well"]
    recipe = Recipe.of_json(json.loads(metadata["recipe"]))
    assert recipe == result.state.members.recipes[1]
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString())
    _, logits = session.run(None, {"input": recipe.transform(new, "new")})
    np.testing.assert_allclose(logits, result.predict(new, "south")["scores"], rtol=1e-4, atol=1e-5)
    new.to_csv(tmp_path / "new.csv", index=False)
    assert command("predict", "south.safetensors", "--input", "new.csv", "--out", "a.csv")[0] == 0
    assert (pd.read_csv(tmp_path / "a.csv")["label"] == result.predict(new, "south")["label"]).all()


def test_a_fifth_site_joins_from_the_prototypes_file_alone(folder, tmp_path, command):  # noqa: F811
    protofed.run(experiment(folder), tmp_path / "run")
    rows(40, 9, columns=("age", "dose")).to_csv(tmp_path / "east.csv", index=False)
    assert command("export", "run", "--prototypes", "invitation.safetensors")[0] == 0
    for file in (tmp_path / "run").rglob("*.safetensors"):
        file.unlink()
    code, out, _ = command("join", "invitation.safetensors", "--data", "east.csv", "--out", "east.safetensors")
    assert (code, out.splitlines()[0][:60]) == (0, "The newcomer has 32 training and 8 test examples of the clas")
    code, out, _ = command("predict", "east.safetensors", "--input", "east.csv", "--by", "prototype")
    assert code == 0
    assert len(out.splitlines()) == 41


def test_texts_that_mean_missing_in_the_run_mean_it_in_new_rows(folder, tmp_path, command):  # noqa: F811
    protofed.run(experiment(folder, missing=["?"]), tmp_path / "run")
    rows(40, 9, columns=("age", "sex", "dose")).to_csv(tmp_path / "east.csv", index=False)
    for text in ("", "?"):
        (tmp_path / f"new{text}.csv").write_text(f"age,sex,dose\n{text},f,0.5\n44,{text},2.5\n")
    for words in (
        ("export", "run", "--client", "north", "--out", "north.safetensors"),
        ("export", "run", "--prototypes", "invitation.safetensors"),
        ("join", "invitation.safetensors", "--data", "east.csv", "--epochs", "1", "--out", "east.safetensors"),
    ):
        assert command(*words)[0] == 0
    for model in (("run", "--client", "north"), ("north.safetensors",), ("east.safetensors",)):
        empty, marked = (command("predict", *model, "--input", f"new{text}.csv") for text in ("", "?"))
        assert empty[0] == 0
        assert marked == empty


def test_a_recipe_keeps_the_texts_that_mean_missing_and_older_files_have_none():
    recipe = replace(fit_recipe(pd.DataFrame({"a": [1.0, 2.0]}), {"a": "number"}, "y"), missing=("?", "unknown"))
    assert Recipe.of_json(json.loads(json.dumps(recipe.json()))) == recipe
    older = {key: value for key, value in recipe.json().items() if key != "missing"}
    assert Recipe.of_json(older) == replace(recipe, missing=())


def test_a_newcomer_from_a_file_is_not_trained_on_its_test_rows(folder, tmp_path):
    for file in folder.iterdir():
        file.unlink()
    for number, name in enumerate(("a", "b")):
        frame = rows(40, number).assign(part=["test"] * 10 + ["train"] * 30)
        frame.to_csv(folder / f"{name}.csv", index=False)
    result = protofed.run(experiment(folder, test="part"))
    write_invitation(Invitation.of(result), tmp_path / "i.safetensors")
    frame = rows(40, 9).assign(part=["test"] * 16 + ["train"] * 24)
    from_file, from_run = (join(source, frame, epochs=1) for source in (tmp_path / "i.safetensors", result))
    assert (from_file.train, from_file.test) == (24, 16)
    assert from_file.figures() == from_run.figures()
    assert "part" not in {step.name for step in from_file.model.recipe.steps}
    changed_metadata(tmp_path / "i.safetensors", "invitation", without_test)
    assert read_invitation(tmp_path / "i.safetensors").table.test == ""  # a file of an earlier version


def without_test(about: dict) -> dict:
    return {**about, "table": {key: value for key, value in about["table"].items() if key != "test"}}


def test_one_file_with_a_column_of_clients_and_one_of_test_rows(tmp_path):
    draw = np.random.RandomState(0)
    both = pd.concat([rows(30, 0).assign(site="a"), rows(20, 1, columns=("dose",)).assign(site="b")])
    both["part"] = np.where(draw.rand(50) < 0.3, "test", "train")
    both.to_csv(tmp_path / "all.csv", index=False)
    members = Members.of(Config.of(experiment(tmp_path / "all.csv", client="site", test="part", drop=["a:age"])))
    assert members.names == ("a", "b")
    assert [[step.name for step in recipe.steps] for recipe in members.recipes] == [["sex", "dose"], ["dose"]]
    for client, name in enumerate("ab"):
        frame = both[both["site"] == name]
        assert members.parts[client].test.tolist() == np.flatnonzero(frame["part"] == "test").tolist()


def test_federated_scaling_uses_the_training_rows_of_all_clients_and_gives_equal_nets(folder):
    (folder / "south.parquet").unlink()
    table = {**experiment(folder, scaling="federated"), "method": {"name": "fedavg"}}
    members = Members.of(Config.of(table))
    frames = [pd.read_csv(folder / "north.csv"), pd.read_feather(folder / "west.feather")]
    train = pd.concat([frame.iloc[part.train] for frame, part in zip(frames, members.parts, strict=True)])
    for recipe in members.recipes:
        for step in recipe.steps:
            if step.kind == "number":
                values = train[step.name].dropna()
                assert (step.mean, step.std) == (pytest.approx(values.mean()), pytest.approx(values.std(ddof=0)))
    assert members.recipes[0].inputs == members.recipes[1].inputs
    # age and dose of two clients, a count, a mean and a sum of squared deviations each
    assert "federated scaling: before the first round the clients sent 12 numbers" in members.notes[1]
    assert protofed.run(table).summary["global"]["accuracy"] is not None


@pytest.mark.parametrize(("mean", "deviation"), [(1.7e9, 1000.0), (1e6, 0.29), (0.0, 1e-9), (-5e12, 1.0)])
def test_federated_scaling_of_a_column_with_a_large_mean(mean, deviation):
    """Such as seconds since 1970. The values are exact to 2e-16 of the mean."""
    values = mean + deviation * np.random.RandomState(0).randn(1000)
    parts = np.split(values, [300, 300, 999])
    found = mean_and_deviation([ColumnMoments.of(part) for part in parts])
    assert found == (pytest.approx(values.mean(), rel=1e-12), pytest.approx(values.std(), rel=1e-6))


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9 / 3, -7e-20])
def test_federated_scaling_of_a_column_with_equal_values(value):
    parts = [np.full(count, value) for count in (1, 0, 999, 12345)]
    found = mean_and_deviation([ColumnMoments.of(part) for part in parts])
    assert found == (pytest.approx(value), 1.0)
    assert mean_and_deviation([ColumnMoments.of(np.array([np.nan]))]) == (0.0, 1.0)


def test_a_newcomer_of_a_run_with_federated_scaling_scales_alike(folder, tmp_path):
    result = protofed.run(experiment(folder, scaling="federated"))
    write_invitation(Invitation.of(result), tmp_path / "i.safetensors")
    joined = join(read_invitation(tmp_path / "i.safetensors"), rows(40, 9, columns=("dose", "sex")), epochs=1)
    steps = {step.name: step for step in result.state.members.recipes[1].steps}
    for step in joined.model.recipe.steps:
        assert (step.mean, step.std, step.values) == (
            steps[step.name].mean,
            steps[step.name].std,
            steps[step.name].values,
        )


def test_scaling_by_constants(folder):
    constants = {"age": [50, 10], "dose": [1, 2]}
    members = Members.of(Config.of(experiment(folder, scaling=constants)))
    assert [(step.mean, step.std) for step in members.recipes[1].steps if step.name == "dose"] == [(1.0, 2.0)]
    config = Config.of(experiment(folder, scaling=constants))
    assert Config.of(config.table()) == config
    with pytest.raises(
        UserError, match=r'data.scaling: it has no mean and deviation for the column "age". Give age = '
    ):
        Members.of(Config.of(experiment(folder, scaling={"dose": [1, 2]})))


def test_a_single_client_reads_its_table_as_it_does_among_others(folder):
    """As a deployed client does, which sees no other table."""
    config = Config.of({**experiment(folder), "eval": {"validation": 0.2}})
    members, options = Members.of(config), config.data.table_options()
    for number, file in enumerate(sorted(folder.iterdir())):
        table = read_client_table(file, options)
        alone = client_examples(table, options, members.labels, (), number, 0.2, config.run.seed)
        assert (table.name, alone.recipe) == (members.names[number], members.recipes[number])
        for part, sets in (
            (alone.train, members.train),
            (alone.test, members.test),
            (alone.validation, members.validation),
        ):
            assert torch.equal(part.x[part.index], sets[number].x[sets[number].index])
            assert torch.equal(part.labels, sets[number].labels)


def test_a_temperature_makes_the_confidence_right():
    draw = np.random.RandomState(0)
    truth = draw.normal(size=(4000, 3))
    shares = np.exp(truth) / np.exp(truth).sum(1, keepdims=True)
    labels = np.array([draw.choice(3, p=share) for share in shares])
    # scores that are three times too sure; the spread of the estimate is about 1 / sqrt(4000) of it, times a few
    assert fit_temperature(3 * truth, labels) == pytest.approx(3, rel=0.1)
    assert fit_temperature(np.full((3, 2), -np.inf), np.array([0, 1, 0])) is None


def test_dataframes_from_python(tmp_path):
    frames = {"north": rows(60, 0), "south": rows(50, 1, columns=("dose", "sex"))}
    federation = protofed.Federation(frames, target="outcome", drop=["sex"])
    result = federation.run({"run": {"rounds": 2}, "eval": {"validation": 0.2}}, tmp_path / "run")
    assert [row["name"] for row in result.clients] == ["north", "south"]
    new = rows(9, 7)
    again = protofed.Result.load(tmp_path / "run")
    np.testing.assert_array_equal(again.predict(new, "south"), result.predict(new, "south"))
    joined = join(result, rows(40, 5, columns=("age", "dose")), epochs=1)
    assert joined.model.recipe.inputs == ["age", "age missing", "dose"]
    tests = [rows(10, 3), rows(10, 4, columns=("dose", "sex"))]
    given = protofed.Federation(frames, tests, target="outcome").members(Config.load())
    assert [len(test) for test in given.test] == [10, 10]
    assert [len(train) for train in given.train] == [60, 50]


def test_own_nets_on_dataframes():
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        nets = [nn.Sequential(nn.Linear(width, 5), nn.ReLU(), nn.Linear(5, 2)) for width in (3, 3, 1)]
    frames = [rows(40, 0, columns=("age", "dose")), *(rows(40, 1, columns=(name,)) for name in ("sex", "dose"))]
    result = protofed.Federation(frames, nets=nets, target="outcome").run({"run": {"rounds": 1}})
    assert [net.shape for net in result.state.members.nets] == [(3,), (3,), (1,)]
    assert "name" not in result.clients[0]


@pytest.mark.parametrize(
    ("frames", "more", "message"),
    [
        ([rows(9, 0)], {}, 'target: DataFrames need the name of the column with the labels, as target="diagnosis".'),
        ([rows(9, 0), (np.zeros((4, 2)), [0, 1, 0, 1])], {"target": "outcome"}, "data: some clients have DataFrames, others do not. Give DataFrames for all."),
        ([rows(9, 0)], {"target": "outcome", "scalling": "client"}, "Federation has no argument 'scalling'. Did you mean \"scaling\"? Known: categories, drop, min_classes, scaling, test."),
        ([rows(9, 0)] * 2, {"target": "outcome", "names": ["a"]}, "names: got 1 for 2 clients. Give one name per client."),
        ([rows(9, 0)] * 2, {"target": "outcome", "names": ["a", "a"]}, "names: got 'a' more than once. Give every client a name of its own."),
        ([(np.zeros((4, 2)), [0, 1, 0, 1])], {"drop": ["a"]}, "drop: it is for DataFrames, but data has pairs (x, y). Leave it out."),
        ([(np.zeros((4, 2)), [0, 1, 0, 1])], {"names": ["7"]}, "names: got '7'; a name must not be a number, because clients have numbers, too."),
    ],
)  # fmt: skip
def test_what_a_federation_of_tables_refuses(frames, more, message):
    with pytest.raises(UserError) as caught:
        protofed.Federation(frames, **more)
    assert str(caught.value) == message


@pytest.mark.slow  # it measures time
def test_ten_thousand_rows_of_thirty_columns_for_twenty_clients_load_quickly(tmp_path):
    """Measured: 2 s of processor time for 10,000 rows per client, and 1 s to import; here for a tenth of the rows."""
    draw = np.random.RandomState(0)
    table = pd.DataFrame(draw.normal(size=(1000, 26)).round(4), columns=[f"n{number}" for number in range(26)])
    for number in range(4):
        table[f"c{number}"] = np.array(["red", "green", "blue", "grey"])[draw.randint(0, 4, 1000)]
    table.assign(y=draw.randint(0, 3, 1000)).to_csv(tmp_path / "client0.csv", index=False)
    for client in range(1, 20):
        shutil.copy(tmp_path / "client0.csv", tmp_path / f"client{client}.csv")
    began = time.process_time()
    members = Members.of(Config.of({"data": {"name": "table", "root": str(tmp_path), "target": "y"}}))
    assert time.process_time() - began < 20  # for machines that are much slower
    assert sum(map(len, (*members.train, *members.test))) == 20_000


def test_the_answer_for_a_row_does_not_depend_on_the_other_rows_of_its_file(tmp_path, command):  # noqa: F811
    (tmp_path / "sites").mkdir()
    for seed, name in enumerate(("north", "south")):
        number = np.arange(60) + seed
        codes = {
            "ward": np.array(["01", "02", "A3"])[number % 3],
            "smoker": np.array(["TRUE", "FALSE", "?"])[number % 3],
        }
        rows(60, seed).assign(**codes).to_csv(tmp_path / "sites" / f"{name}.csv", index=False)
    protofed.run(experiment(tmp_path / "sites"), tmp_path / "run")
    header, *lines = (tmp_path / "sites" / "north.csv").read_text().splitlines()
    for name, chosen in {"all": lines[:6], "alone": lines[:1]}.items():
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *chosen]))
        assert command("predict", "run", "--client", "north", "--input", f"{name}.csv", "--out", f"{name}.npy")[0] == 0
    together, alone = (np.load(tmp_path / f"{name}.npy")["scores"][0] for name in ("all", "alone"))
    np.testing.assert_allclose(alone, together, atol=1e-6)


def test_categories_are_compared_as_they_are_written_and_then_as_numbers():
    frame = pd.DataFrame({"ward": ["01"] * 3 + ["1"] * 3 + ["A"] * 3, "on": [True, False, True] * 3})
    recipe = fit_recipe(frame, kinds(frame, ["ward", "on"]), "y")
    assert recipe.inputs == ["ward=01", "ward=1", "ward=A", "ward=other", "on=False", "on=True", "on=other"]
    new = pd.DataFrame({"ward": ["01", "1", "1.0", "2"], "on": ["TRUE", "false", "True", "x"]})
    inputs = recipe.transform(new, "new")
    assert inputs[:, :4].argmax(1).tolist() == [0, 1, 0, 3]
    assert inputs[:, 4:].argmax(1).tolist() == [1, 0, 1, 2]
    whole = pd.DataFrame({"ward": [1, 2, 1], "on": [True, True, False]})
    assert recipe.transform(whole, "new")[:, :4].argmax(1).tolist() == [1, 3, 1]


def test_codes_and_names_of_clients_are_those_that_are_written_in_the_file(tmp_path):
    large = 2**60 + 1  # a float cannot hold it
    lines = [
        f"{site},{code},{number},{number % 2}"
        for site in ("001", "010")
        for number, code in enumerate(("01", "2.0", large, ""))
    ]
    (tmp_path / "all.csv").write_text("\n".join(["site,code,age,y", *lines]))
    frames = read_frames(str(tmp_path / "all.csv"), TableOptions("y", client="site", categories=("code",)))
    assert list(frames) == ["001", "010"]
    assert frames["010"][1]["code"].dropna().tolist() == ["01", "2", str(large)]


def test_a_newcomers_codes_are_categories_where_they_are_at_all_clients(tmp_path, command):  # noqa: F811
    (tmp_path / "sites").mkdir()
    wards = np.array(["01", "02", "A3"])
    for seed, name in enumerate(("north", "south")):
        table = rows(60, seed, columns=("dose",)).assign(ward=wards[np.arange(60) % 3])
        table.to_csv(tmp_path / "sites" / f"{name}.csv", index=False)
    protofed.run(experiment(tmp_path / "sites", scaling="federated"), tmp_path / "run")
    assert command("export", "run", "--prototypes", "invitation.safetensors")[0] == 0
    table = rows(40, 9, columns=("dose",)).assign(ward=wards[np.arange(40) % 2])
    table.to_csv(tmp_path / "east.csv", index=False)
    invitation = read_invitation(tmp_path / "invitation.safetensors")
    newcomer = newcomer_data(invitation, *read_newcomer(tmp_path / "east.csv", invitation), False, "east")
    assert newcomer.recipe.inputs == ["dose", "ward=01", "ward=02", "ward=A3", "ward=other"]
    inputs = newcomer.train.x[:, 1:].sum(0)
    assert inputs.tolist() == [20, 20, 0, 0]


def test_data_info_of_one_table_knows_the_texts_that_mean_missing(tmp_path, command):  # noqa: F811
    ages = ["?", *range(40, 50)]
    (tmp_path / "a.csv").write_text("\n".join(["age,y", *(f"{age},{n % 2}" for n, age in enumerate(ages))]))
    (tmp_path / "a.toml").write_text('[data]\nname = "table"\nroot = "a.csv"\ntarget = "y"\nmissing = ["?"]\n')
    code, out, _ = command("data", "info", "a.toml")
    assert (code, out.splitlines()[3].split()) == (0, ["age", "number", "1", "all", "40", "to", "49"])
