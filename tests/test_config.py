"""The experiment file, and the messages people get."""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from annotated_types import Ge

from protofed import run
from protofed.data.partitions import PARTITIONS
from protofed.data.sources import SOURCES
from protofed.errors import ConfigError, UserError
from protofed.experiment.config import DEFAULTS, Config
from protofed.experiment.options import option_descriptions
from protofed.experiment.sections import SECTIONS
from protofed.methods import METHODS
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedproto import FedProto
from protofed.methods.fedprox import FedProx
from protofed.nets import NETS

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))


def problems(table: dict) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Config.of(table)
    return list(caught.value.problems)


def test_without_a_file_it_is_fedproto_on_digits():
    made = Config.load()
    assert (made.method_name, made.data.name, made.data.clients, made.partition_name) == (
        "fedproto",
        "digits",
        0,
        "nway",
    )
    assert made.method == FedProto()


def test_the_resolved_table_gives_the_same_experiment_again():
    made = Config.of(
        {"net": [{"name": "cnn", "channels": 18, "share": 7}, {"name": "mlp", "hidden": [9, 8]}], "run": {"sample": 3}}
    )
    assert Config.of(made.table()) == made


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_valid(recipe):
    assert Config.load(recipe).table()["run"]["rounds"] >= 1


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"mehtod": {}},
            '[mehtod]: unknown section. Did you mean "method"? Known: attack, data, engine, eval, method, net, partition, privacy, run, system, train, trust.',
        ),
        (
            {"x": 3},
            "[x]: a key outside any section. Known: attack, data, engine, eval, method, net, partition, privacy, run, system, train, trust.",
        ),
        (
            {"run": {"sample": "half"}},
            'run.sample: got "half"; must be a fraction of the clients above 0 and up to 1.0 (like 0.1), or a whole number of clients',
        ),
        ({"run": 3}, "[run]: got 3; must be a table of keys"),
        ({"net": 3}, "[net]: got 3; must be a table with a name, or a list of them ([[net]])"),
        (
            {"method": {"name": "fedporto"}},
            'method.name: there is no "fedporto". Did you mean "fedproto"? Known: creff, ditto, fedatt, fedavg, fedbabu, fednh, fedper, fedproto, fedprox, fedrep, fedrod, fedtgp, fesem, fpl, local, mpfedcl, protomargin.',
        ),
        (
            {"data": {"name": "minst"}},
            f'data.name: there is no "minst". Did you mean "mnist"? Known: {", ".join(sorted(SOURCES))}.',
        ),
        (
            {"method": {"pul": 1}},
            'method.pul: unknown key of fedproto. Did you mean "pull"? Known: between, distance, initial_weights, nearest, outputs, pooling, prototypes, pull, pull_schedule, send.',
        ),
        ({"partition": {"name": "iid", "alpha": 1}}, "partition.alpha: unknown key. partition iid has no options."),
        ({"method": {"name": "local", "pull": 1}}, "method.pull: unknown key of local. Known: initial_weights."),
        (
            {"method": {"distance": "l3"}},
            'method.distance: got "l3". Known: cross_entropy, emd, l1, l2, mse, relu_l2, squared.',
        ),
        (
            {"method": {"distance": "sqared"}},
            'method.distance: got "sqared". Did you mean "squared"? Known: cross_entropy, emd, l1, l2, mse, relu_l2, squared.',
        ),
        ({"method": {"pull": -1.0}}, "method.pull: got -1.0; must be 0 or more"),
        ({"run": {"rounds": 0}}, "run.rounds: got 0; must be 1 or more"),
        ({"run": {"seed": True}}, "run.seed: got true; must be a whole number"),
        (
            {"run": {"sample": 0}},
            "run.sample: got 0; must be a fraction of the clients above 0 and up to 1.0 (like 0.1), or a whole number of clients",
        ),
        (
            {"run": {"sample": 1.5}},
            "run.sample: got 1.5; must be a fraction of the clients above 0 and up to 1.0 (like 0.1), or a whole number of clients",
        ),
        ({"train": {"lr": float("nan")}}, "train.lr: got nan; must be a finite number"),
        ({"train": {"lr": "fast"}}, 'train.lr: got "fast"; must be a number'),
        ({"train": {"momentum": 1.0}}, "train.momentum: got 1.0; must be below 1"),
        ({"train": {"batch": 2.5}}, "train.batch: got 2.5; must be a whole number"),
        ({"net": {"hidden": 7}}, "net.hidden: got 7; must be a list"),
        ({"train": {"decay": 2}}, "train.decay: got 2; must be 1 or less"),
        (
            {"train": {"schedule": "linear"}},
            'train.schedule: got "linear". Known: constant, cosine, exponential, polynomial.',
        ),
        (
            {"train": {"schedule": "constant", "decay": 0.5}},
            'train.decay: got 0.5, but train.schedule = "constant" does not use it. Leave it out, or set '
            'train.schedule = "exponential".',
        ),
        (
            {"train": {"decay_rounds": 9}},
            'train.decay_rounds: got 9, but train.schedule = "exponential" does not use it. Leave it out, or set '
            'train.schedule = "polynomial" or "cosine".',
        ),
        (
            {"train": {"schedule": "cosine", "decay_rounds": 9, "decay_power": 2.0}},
            'train.decay_power: got 2, but train.schedule = "cosine" does not use it. Leave it out, or set '
            'train.schedule = "polynomial".',
        ),
        (
            {"train": {"schedule": "polynomial"}},
            'train.decay_rounds: missing. train.schedule = "polynomial" needs the number of rounds in which the '
            "learning rate falls, usually that of run.rounds.",
        ),
        (
            {"train": {"schedule": "cosine", "decay_rounds": 3, "warmup": 3}},
            "train.warmup: got 3; must be below train.decay_rounds (3), which includes the rounds of the warm-up.",
        ),
        (
            {"train": {"warmup": 0.5}},
            'train.warmup: got 0.5; must be a whole number of rounds, unless train.schedule_by = "step".',
        ),
        ({"net": {"share": 2e6}}, "net.share: got 2000000.0; must be 1000000 or less"),
        ({"data": {"root": 3}}, "data.root: got 3; must be text in quotes"),
        ({"data": {"name": None}}, "data.name: got None; must be text in quotes"),
        ({"method": None}, "[method]: got None; must be a table of keys"),
        ({"net": [{"share": 0}]}, "net.share: got 0; must be above 0"),
    ],
)
def test_messages_name_the_key_what_was_got_and_what_would_do(table, message):
    assert problems(table) == [message]


@pytest.mark.parametrize(
    ("section", "registry"),
    [("method", METHODS), ("partition", PARTITIONS), ("net", NETS)],
    ids=["method", "partition", "net"],
)
def test_a_name_that_is_none_is_unknown_like_any_other(section, registry):
    message = f"{section}.name: there is no None. Known: {', '.join(sorted(registry))}."
    assert problems({section: {"name": None}}) == [message]
    with pytest.raises(UserError, match=f"{section}.name: there is no None"):
        run({section: {"name": None}})


def test_an_encoder_file_without_the_name_of_its_net_is_refused(tmp_path):
    from safetensors.torch import save_file

    path = str(tmp_path / "e.safetensors")
    save_file({"body.fc1.weight": torch.zeros(3, 64)}, path, {"source": '{"dim": 3}'})
    with pytest.raises(ConfigError) as caught:
        run({"data": {"encoder": path}})
    message = f"data.encoder: net of {path}: there is no None. Known: {', '.join(sorted(NETS))}."
    assert caught.value.problems == (message,)


def test_a_problem_is_raised_before_an_experiment_is_made(monkeypatch):
    monkeypatch.setattr(Config, "__init__", lambda self, **parts: pytest.fail("made an experiment of nothing"))
    assert len(problems({"run": {"rounds": 0}, "net": [{"name": "x"}, {"share": 0}]})) == 3


@dataclass(frozen=True)
class Demanding(FedProx):
    """A method with an option without a default, and one with a default that a function makes."""

    strength: Annotated[float, Ge(0)] = field(kw_only=True)
    """how strong"""
    layers: tuple[int, ...] = field(default_factory=lambda: (1, 2))
    """which layers"""


def test_an_option_without_a_default_must_be_set(monkeypatch):
    monkeypatch.setitem(METHODS, "demanding", Demanding)
    message = "method.strength: missing. It has no default, so it must be set."
    assert problems({"method": {"name": "demanding"}}) == [message]
    assert problems({"method": {"name": "demanding", "strength": -1}}) == ["method.strength: got -1; must be 0 or more"]
    method = Config.of({"method": {"name": "demanding", "strength": 2, "mu": 3.0}}).method
    assert method == Demanding(strength=2.0, mu=3.0, layers=(1, 2))


def test_options_are_described_by_the_text_below_them_also_in_base_classes():
    described = option_descriptions(Demanding)
    assert (described["strength"], described["layers"]) == ("how strong", "which layers")
    assert described.keys() == {"weights", "mu", "term", "strength", "layers"}
    assert described["weights"] == option_descriptions(FedAvg)["weights"] != ""


def test_all_problems_are_told_at_once():
    told = problems(
        {"run": {"rounds": 0, "sed": 1}, "train": {"lr": -1}, "method": {"name": "x"}, "engine": {"name": "y"}}
    )
    assert len(told) == 5
    with pytest.raises(ConfigError) as caught:
        Config.load(None, ["a.b=1", "train.lrr=2", "foo"])
    assert len(caught.value.problems) == 3


def test_set_reads_values_as_toml_or_as_text():
    made = Config.load(
        None, ["train.lr=0.5", "method.name=fedavg", "net.hidden=[3, 4]", "run.sample=2", 'data.root="/x"']
    )
    assert (made.train.lr, made.method_name, made.nets[0].design.hidden, made.run.sample, made.data.root) == (
        0.5,
        "fedavg",
        (3, 4),
        2,
        "/x",
    )


def test_set_of_a_new_name_drops_the_old_ones_options(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('[method]\nname = "fedproto"\npull = 3.0\n[data]\nname = "digits"\nclients = 7\n')
    assert Config.load(file, ["method.name=fedavg"]).method_name == "fedavg"
    assert Config.load(file, ["method.name=fedproto"]).method.pull == 3.0
    assert Config.load(file, ["data.name=mnist"]).data.clients == 7  # these keys are not the dataset's


@pytest.mark.parametrize(
    "words", [["method.weights=equal", "method.name=fedavg"], ["method.name=fedavg", "method.weights=equal"]]
)
def test_set_keeps_what_was_set_in_either_order(words):
    assert Config.load(None, words).method.weights == "equal"


def test_set_of_the_default_name_drops_nothing(tmp_path):
    (tmp_path / "a.toml").write_text("[method]\npull = 3.0\n")
    assert Config.load(tmp_path / "a.toml", ["method.name=fedproto"]).method.pull == 3.0


def test_set_on_a_list_of_nets():
    mixed = next(path for path in RECIPES if path.stem == "fedproto-mnist-n3-mixed")
    assert len(Config.load(mixed, ["net.name=mlp"]).nets) == 1
    with pytest.raises(ConfigError, match=r"\[net\] is not a table in the file"):
        Config.load(mixed, ["net.channels=3"])


@pytest.mark.parametrize("word", ["lr=3", "train.lr", "train.=3", ".lr=3"])
def test_set_words_must_have_a_section_a_key_and_a_value(word):
    with pytest.raises(ConfigError, match=r"must look like section.key=value"):
        Config.load(None, [word])


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(UserError, match="There is no experiment file"):
        Config.load(tmp_path / "no.toml")
    (tmp_path / "bad.toml").write_text("[run\n")
    with pytest.raises(UserError, match="is not a readable TOML file"):
        Config.load(tmp_path / "bad.toml")


def test_a_recipe_that_comes_with_protofed_is_found_beside_a_folder_of_the_users(tmp_path, monkeypatch):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.toml").write_text("[run]\nrounds = 7\n")
    monkeypatch.chdir(tmp_path)
    shipped = next(recipe for recipe in RECIPES if recipe.stem == "digits-n3")
    assert Config.load("recipes/digits-n3.toml") == Config.load(shipped)
    (tmp_path / "recipes" / "digits-n3.toml").write_text("[run]\nrounds = 8\n")
    assert [Config.load(f"recipes/{name}.toml").run.rounds for name in ("mine", "digits-n3")] == [7, 8]
    with pytest.raises(UserError, match=r"There is no experiment file recipes/none\.toml"):
        Config.load("recipes/none.toml")


def test_a_retired_key_without_effect_is_ignored_and_one_with_an_effect_is_not():
    assert Config.of({"engine": {"compile": False}}) == Config.of({})
    with pytest.raises(ConfigError, match=r"engine\.compile: unknown key"):
        Config.of({"engine": {"compile": True}})


def test_the_hash_of_an_experiment_depends_on_what_differs_from_the_defaults(monkeypatch):
    before = Config.of({"method": {"name": "fedavg"}})
    assert Config.of({"method": {"name": "fedavg", "weights": "size"}, "run": {"seed": 0}}).digest() == before.digest()
    assert Config.of({"method": {"name": "fedavg", "weights": "equal"}}).digest() != before.digest()
    assert Config.of({"method": {"name": "fedprox"}}).digest() != before.digest()
    assert Config.of({"net": {"name": "mlp", "hidden": [7]}, "method": {"name": "fedavg"}}).digest() != before.digest()
    assert replace(before, run=replace(before.run, rounds=7)).digest() == before.digest()  # a resumed run may change it

    @dataclass(frozen=True)
    class FedAvgWithOneMoreOption(FedAvg):
        """FedAvg of a later version."""

        later: float = 0.0

    monkeypatch.setitem(METHODS, "fedavg", FedAvgWithOneMoreOption)
    assert Config.of({"method": {"name": "fedavg"}}).digest() == before.digest()
    assert Config.of({"method": {"name": "fedavg", "later": 1.0}}).digest() != before.digest()


def all_defaults() -> dict[str, Any]:
    """The defaults of all options, by "section.key", or "section.name.key" where a name is chosen."""
    kinds = {**SECTIONS}
    for section, registry in (("partition", PARTITIONS), ("net", NETS), ("method", METHODS)):
        kinds |= {f"{section}.{name}": kind for name, kind in registry.items()}
    pairs = ((prefix, entry) for prefix, kind in kinds.items() for entry in fields(kind))
    table = {f"{prefix}.{entry.name}": entry.default for prefix, entry in pairs if entry.default is not MISSING}
    return json.loads(json.dumps(table))


def test_a_default_that_changes_raises_the_version_of_the_defaults():
    """Kept figures are found by hashes that leave defaults out; a changed default must not look like the same run."""
    file = Path(__file__).with_name("defaults.json")
    stored = json.loads(file.read_text())
    now = all_defaults()
    changed = [key for key, value in stored["defaults"].items() if key in now and now[key] != value]
    if changed:
        assert stored["version"] != DEFAULTS, f"raise DEFAULTS in config.py: the defaults of {changed} have changed"
    # after a new option or a raised DEFAULTS: python tests/test_config.py
    assert stored == {"version": DEFAULTS, "defaults": now}, "run `python tests/test_config.py`, and commit its file"


if __name__ == "__main__":
    text = json.dumps({"version": DEFAULTS, "defaults": all_defaults()}, indent=1)
    Path(__file__).with_name("defaults.json").write_text(text + "\n")
