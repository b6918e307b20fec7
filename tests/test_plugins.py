"""Code outside the package, by name: files, modules and entry points. A run folder from somebody else runs none of it."""

from __future__ import annotations

import json
import pickle
import py_compile
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

import protofed
from protofed import cli, plugins
from protofed.errors import UserError
from protofed.experiment.config import Config
from protofed.nets import NETS
from protofed.testing import check_net, check_partition
from protofed.trust.known_code import known_files
from test_docs import tutorial_code

SMALL = {"run": {"rounds": 2}, "data": {"clients": 4, "limit": 120}, "partition": {"name": "iid"}}
MINE = '''
import numpy as np
from dataclasses import dataclass
from torch import nn

import protofed
from protofed.data.partitions.base import Holding
from protofed.draws import random_state

SEEN = []


class Small(nn.Module):
    """A small net of my own."""

    def __init__(self, shape, classes, width: int = 16):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), width), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        z = self.body(x)
        return z, self.head(z)


def narrow(shape, classes, width: int = 8):
    """The same as a function."""
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), width), nn.Tanh(), nn.Linear(width, classes))


@dataclass(frozen=True)
class Halves:
    """Everybody gets an equal part, cut at random."""

    share: float = 1.0
    """share of the examples that is used"""

    def split(self, labels, clients, seed):
        draw = random_state(seed, "halves")
        parts = [draw.permutation(len(y))[: int(self.share * len(y))] for y in (labels.train, labels.test)]
        cut = [np.array_split(np.sort(part), clients or 4) for part in parts]
        return [Holding(train, test) for train, test in zip(*cut)]


def stripes():
    """Two classes of stripes."""
    draw = random_state("stripes")
    y = np.arange(200) % 2
    return {"x": draw.normal(size=(200, 6)) + 2 * y[:, None], "y": np.array(["thin", "thick"])[y]}


def spread(question):
    """How far apart the best and the worst client are."""
    accuracies = [row["accuracy_head"] for row in question.result.clients]
    return {"clients": {"spread": max(accuracies) - min(accuracies)}}


class Notebook(protofed.Watcher):
    """Writes the rounds to a text file."""

    def round(self, row):
        with (self.folder / "notebook.txt").open("a") as file:
            file.write(f"{row['round']}\\n")
'''


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder of somebody's own, with the tutorial's method as mine.py."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "mine.py").write_text(tutorial_code())
    (folder / "parts.py").write_text(MINE)
    return folder


@pytest.fixture
def command(monkeypatch, capsys):
    def call(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["protofed", *words])
        with pytest.raises(SystemExit) as ended:
            cli.entry()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out + err

    return call


def run_mine(**more: object) -> protofed.Result:
    return protofed.run({**SMALL, "method": {"name": "./mine.py:ProtoAvg", "pull": 5.0}}, "runs/a", **more)


def test_a_method_in_a_file_is_that_of_the_same_class_in_python(project):
    by_name = run_mine()
    kind = type(by_name.state.config.method)
    by_class = protofed.run({**SMALL, "method": {"name": kind, "pull": 5.0}})
    assert by_name.summary["method"] == by_class.summary["method"] == "ProtoAvg"
    assert by_name.summary["accuracy"] == by_class.summary["accuracy"]
    assert by_class.state.config.digest() == by_name.state.config.digest()


def test_paths_are_relative_to_the_file_or_to_the_working_directory(project, monkeypatch, command):
    (project / "deep").mkdir()
    (project / "deep" / "e.toml").write_text('[method]\nname = "../mine.py:ProtoAvg"\n')
    name = f"{project / 'mine.py'}:ProtoAvg"
    assert Config.load("deep/e.toml").method_name == name
    monkeypatch.chdir(project / "deep")
    assert (
        Config.load("e.toml").method_name == Config.load(None, ["method.name=../mine.py:ProtoAvg"]).method_name == name
    )
    with pytest.raises(UserError, match=r"cannot be read: No such file"):
        Config.load(None, ["method.name=./mine.py:ProtoAvg"])


def test_a_run_folder_resumes_from_anywhere_and_after_the_project_has_moved(project, monkeypatch, command, tmp_path):
    run_mine()
    assert 'name = "../../mine.py:ProtoAvg"' in (project / "runs/a/config.toml").read_text()
    recorded = json.loads((project / "runs/a/code.json").read_text())["mine.py:ProtoAvg"]
    assert (recorded["file"], recorded["sha256"]) == (str(project / "mine.py"), plugins.file_hash("mine.py"))
    monkeypatch.chdir("/")
    assert command("run", "--resume", "--out", str(project / "runs/a"), "--set", "run.rounds=3")[0] == 0
    moved = shutil.move(project, tmp_path / "elsewhere")
    code, out = command("run", "--resume", "--out", f"{moved}/runs/a", "--set", "run.rounds=4")
    assert (code, "You have not run this file at this place before" in out) == (2, True)
    assert command("run", "--resume", "--out", f"{moved}/runs/a", "--set", "run.rounds=4", "--trust-code")[0] == 0
    assert command("measure", f"{moved}/runs/a")[0] == 0  # it is known now


COMMANDS = [
    ["measure", "RUN"],
    ["predict", "RUN", "--input", "x.npy"],
    ["export", "RUN", "--client", "0", "--out", "a.safetensors"],
    ["join", "RUN", "--data", "x.npz"],
    ["draw", "RUN", "--what", "pca", "--out", "a.png"],
    ["draw", "RUN", "--what", "partition", "--out", "b.png"],
    ["run", "--resume", "--out", "RUN", "--set", "run.rounds=9"],
    ["run", "RUN/config.toml", "--out", "again"],
    ["sweep", "RUN/config.toml", "--grid", "train.lr=0.1,0.2", "--out", "swept"],
]


@pytest.fixture
def download(project, tmp_path, monkeypatch):
    """A run folder of somebody else, in which everything can be named says code that leaves a mark when it is run."""
    run_mine()
    folder = tmp_path / "download"
    shutil.copytree(project, folder)
    evil = f'\nopen({str(tmp_path / "mark")!r}, "w").close()\n'
    for name in ("mine.py", "parts.py"):
        (folder / name).write_text((folder / name).read_text() + evil)
    (folder / "helper.py").write_text(evil)
    monkeypatch.chdir(folder)
    yield folder
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:4]))
def test_a_downloaded_folder_runs_no_code(words, download, command):
    record = json.loads((download / "runs/a/code.json").read_text())
    record["mine.py:ProtoAvg"]["sha256"] = plugins.file_hash("mine.py")  # whatever the folder says of itself
    (download / "runs/a/code.json").write_text(json.dumps(record))
    code, out = command(*(word.replace("RUN", "runs/a") for word in words))
    assert code == 2
    assert "runs/a names code to run: ProtoAvg in" in out
    assert "--trust-code" in out


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ("partition", "../../parts.py:Halves"),
        ("net", "../../parts.py:Small"),
        ("data", "../../parts.py:stripes"),
        ("run", "../../parts.py:Notebook"),
    ],
)
def test_no_other_part_of_a_downloaded_folder_is_run_either(section, name, download, command):
    (download / "runs/a/code.json").unlink()
    table = Config.of(SMALL).table()
    table[section] = {**table[section], "watchers": [name]} if section == "run" else {"name": name}
    (download / "runs/a/config.toml").write_text(tomli_w.dumps(table))
    assert "names code to run" in command("run", "--resume", "--out", "runs/a", "--set", "run.rounds=9")[1]
    assert "names code to run" in command("measure", "runs/a")[1]


def test_a_known_file_with_another_file_next_to_it_is_not_known(project, tmp_path, monkeypatch, command):
    """The file is the very same, but what it imports is not."""
    (project / "helper.py").write_text("")
    (project / "mine.py").write_text(f"import helper\n{tutorial_code()}")
    run_mine()
    folder = tmp_path / "download"
    shutil.copytree(project, folder)
    (folder / "helper.py").write_text(f'open({str(tmp_path / "mark")!r}, "w").close()\n')
    sys.modules.pop("helper", None)
    monkeypatch.chdir(folder)
    assert "You have not run this file at this place before" in command("measure", "runs/a")[1]
    assert not (tmp_path / "mark").exists()


def test_a_module_that_a_folder_names_is_not_imported_to_find_out(download, command, monkeypatch):
    monkeypatch.syspath_prepend(download)
    text = (download / "runs/a/config.toml").read_text().replace("../../mine.py:ProtoAvg", "helper:ProtoAvg")
    (download / "runs/a/config.toml").write_text(text)
    assert "names code to run: ProtoAvg in" in command("measure", "runs/a")[1]
    assert "helper" not in sys.modules


def test_a_home_folder_or_a_compiled_module_is_no_way_around(download, command, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(download))
    py_compile.compile(str(download / "helper.py"), str(download / "compiled.pyc"))
    monkeypatch.syspath_prepend(download)
    before = (download / "runs/a/config.toml").read_text()
    (download / "runs/a/code.json").unlink()
    for name in ("~/mine.py:ProtoAvg", "compiled:ProtoAvg"):
        (download / "runs/a/config.toml").write_text(before.replace("../../mine.py:ProtoAvg", name))
        assert "names code to run: ProtoAvg in" in command("measure", "runs/a")[1]


def test_the_recorded_hash_is_that_of_the_version_that_was_run_last(project):
    text = (project / "mine.py").read_text()
    for number, version in enumerate((text, text + "# changed\n", text)):
        (project / "mine.py").write_text(version)
        protofed.run({**SMALL, "run": {"rounds": 1}, "method": {"name": "./mine.py:ProtoAvg"}}, f"runs/{number}")
    record = json.loads((project / "runs/2/code.json").read_text())
    assert record["mine.py:ProtoAvg"]["sha256"] == plugins.file_hash(project / "mine.py")


@pytest.mark.parametrize("file", ["model", "net of a model", "prototypes"])
def test_files_that_are_passed_on_run_no_code_either(file, download, command, tmp_path):
    from safetensors import safe_open
    from safetensors.torch import save_file

    data = np.random.RandomState(0).normal(size=(30, 8, 8)).reshape(30, 1, 8, 8)
    np.savez("x.npz", x=data, y=np.arange(30) % 3)
    protofed.run({**SMALL, "run": {"rounds": 1}, "method": {"name": "fedproto"}}, "runs/plain")
    words = ["join", "runs/plain", "--data", "x.npz", "--epochs", "1", "--out", "f.safetensors"]
    if file == "prototypes":
        words = ["export", "runs/plain", "--prototypes", "f.safetensors"]
    assert command(*words)[0] == 0
    with safe_open("f.safetensors", "pt") as stored:
        metadata = stored.metadata()
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    for key, text in metadata.items():
        if file == "net of a model" and key == "source":
            metadata[key] = json.dumps({"name": f"{download / 'parts.py'}:Small"})
        elif file != "net of a model":
            metadata[key] = text.replace('"name": "fedproto"', f'"name": "{download / "mine.py"}:ProtoAvg"')
    save_file(tensors, "g.safetensors", metadata)
    np.save("x.npy", data)
    use = (
        ["predict", "g.safetensors", "--input", "x.npy"]
        if file != "prototypes"
        else ["join", "g.safetensors", "--data", "x.npz"]
    )
    code, out = command(*use)
    assert (code, "g.safetensors names code to run" in out) == (2, True)


def test_a_client_cannot_name_the_code_of_a_server(download):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'protofed[flower]' to test deployments")
    from protofed.deploy.descriptions import checked_description

    figures = {"input": {"shape": [6]}, "sizes": [3, 3, -1], "counts": [[], []], "images": [], "balanced": False}
    figures |= {"pixels": False, "own": False, "group": "", "dataset": "", "remark": ""}
    with pytest.raises(ValueError, match=r"its net .*parts\.py:Small is not part of protofed"):
        checked_description({**figures, "net": {"name": f"{download / 'parts.py'}:Small"}}, Config.of({}), ())


def test_numbers_are_read_without_any_code(download, command):
    for words in (["compare", "runs/a"], ["runs", "runs"], ["draw", "runs/a", "--what", "curves", "--out", "a.png"]):
        assert command(*words)[0] == 0
    (download / "mine.py").unlink()
    code, out = command("compare", "runs/a")
    assert (code, "ProtoAvg" in out, "mine.py" in out) == (0, True, False)
    for what in ("losses", "cost", "clients"):
        assert command("draw", "runs/a", "--what", what, "--out", f"{what}.png")[0] == 0
    code, out = command("measure", "runs/a")
    assert code == 2
    assert "was run with ProtoAvg from" in out
    assert "which is not there now. Put it back." in out


def test_a_file_that_changed_is_said_and_the_flag_takes_it(project, command):
    run_mine()
    before = plugins.file_hash("mine.py")
    (project / "mine.py").write_text(f"{tutorial_code()}\n# a remark\n")
    code, out = command("run", "--resume", "--out", "runs/a", "--set", "run.rounds=3")
    assert code == 2
    assert f"has changed since runs/a was run with ProtoAvg from it (sha256 {before[:12]} then" in out
    with pytest.raises(UserError, match="has changed since"):
        protofed.Result.load("runs/a")
    assert protofed.Result.load("runs/a", trust_code=True).summary["rounds"] == 2
    with pytest.raises(UserError, match="has changed since"):
        run_mine(resume=True)
    assert command("run", "--resume", "--out", "runs/a", "--set", "run.rounds=3", "--trust-code")[0] == 0
    assert json.loads((project / "runs/a/code.json").read_text())["mine.py:ProtoAvg"]["earlier"] == [before]


@pytest.mark.slow
def test_a_sweep_says_that_its_file_changed_and_may_move(project, command, tmp_path, monkeypatch):
    words = ("sweep", "--grid", "method.pull=1,5", "--seeds", "1", "--out", "s", "--set", "run.rounds=1")
    words += ("--set", "data.clients=3", "--set", "partition.name=iid")
    assert command(*words, "--set", "method.name=./mine.py:ProtoAvg")[0] == 0
    assert command("compare", "s")[0] == 0
    (project / "mine.py").rename(project / "moved.py")
    (project / "sub").mkdir()
    (project / "moved.py").rename(project / "sub" / "mine.py")
    assert command(*words, "--set", "method.name=./sub/mine.py:ProtoAvg")[0] == 0
    (project / "sub" / "mine.py").write_text(f"{tutorial_code()}\n# a remark\n")
    assert "has changed since" in command(*words, "--set", "method.name=./sub/mine.py:ProtoAvg")[1]


def test_nets_partitions_data_measures_and_watchers_plug_in_the_same_way(project, command):
    table = {
        "run": {"rounds": 2, "watchers": ["./parts.py:Notebook"]},
        "data": {"name": "./parts.py:stripes", "clients": 3},
        "partition": {"name": "./parts.py:Halves", "share": 0.5},
        "net": {"name": "./parts.py:Small", "width": 12},
        "method": {"name": "fedavg"},
    }
    result = protofed.run(table, "runs/b")
    assert (result.summary["dataset"], result.labels) == ("stripes", ("thick", "thin"))
    assert [row["train"] for row in result.clients] == [27, 27, 26]
    assert result.state.members.nets[0].name == "Small(width=12)"
    assert (project / "runs/b/notebook.txt").read_text() == "1\n2\n"
    assert sorted(json.loads((project / "runs/b/code.json").read_text())) == [
        "parts.py:Halves",
        "parts.py:Notebook",
        "parts.py:Small",
        "parts.py:stripes",
    ]
    code, out = command("measure", "runs/b", "--what", "./parts.py:spread")
    assert (code, "spread: How far apart the best and the worst client are." in out) == (0, True)
    loaded = protofed.Result.load("runs/b")
    assert protofed.measure(loaded, ["./parts.py:spread"])["spread"].rows["clients"]["spread"] >= 0
    assert command("data", "info", "./parts.py:stripes")[0] == 0


def test_a_function_is_a_net_too_and_several_nets_mix(project):
    nets = [{"name": "./parts.py:narrow"}, {"name": "./parts.py:narrow", "width": 9}, {"name": "mlp", "dim": 8}]
    result = protofed.run({**SMALL, "net": nets[:1], "method": {"name": "fedavg"}})
    assert result.state.members.nets[0].name == "narrow"
    mixed = protofed.run({**SMALL, "net": [nets[0], nets[2]], "method": {"name": "fedproto"}})
    assert [net.name for net in mixed.state.members.nets] == ["narrow"] * 2 + ["mlp(dim=8)"] * 2
    first, second = (protofed.run({**SMALL, "net": nets[:1]}).state.kept[0].params for _ in range(2))
    assert all((first[name] == second[name]).all() for name in first)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"method": {"name": "./mine.py:Shared"}}, '" is a class; must be a class derived from protofed.core.Method.'),
        ({"method": {"name": "./mine.py:ProtAvg"}}, 'mine.py has no "ProtAvg". Did you mean "ProtoAvg"?'),
        (
            {"method": {"name": "mypackage.mine:X"}},
            "method.name: there is no module mypackage. Install it, add its folder",
        ),
        ({"method": {"name": "./mine.py"}}, 'method.name: there is no "./mine.py".'),
        (
            {"method": {"name": "./mine.py:ProtoAvg", "pul": 1}},
            'method.pul: unknown key of ProtoAvg. Did you mean "pull"?',
        ),
        (
            {"method": {"name": "./broken.py:X"}},
            "broken.py, line 3: NameError: name 'y' is not defined. Correct the file",
        ),
        ({"method": {"name": "./half.py:X"}}, "half.py, line 1: SyntaxError: "),
        (
            {"net": {"name": "./parts.py:spread"}},
            "takes (question); must take (shape, classes): the shape of one input",
        ),
        ({"net": {"name": "./parts.py:SEEN"}}, "is a list; a net is a torch module class or a function"),
        ({"partition": {"name": "./parts.py:Small"}}, "is a class; a partition is a frozen dataclass with a function"),
        ({"data": {"name": "./parts.py:Small"}}, "is a class; must be a function of the data folder"),
        ({"run": {"watchers": ["./parts.py:Small"]}}, "is a class; must be a class derived from protofed.Watcher."),
        ({"run": {"watchers": ["tensorbord"]}}, 'run.watchers: there is no "tensorbord". Did you mean "tensorboard"?'),
    ],
)
def test_what_cannot_be_used_is_said(table, message, project):
    (project / "broken.py").write_text("x = 1\n\nz = x + y\n")
    (project / "half.py").write_text("class X(:\n")
    with pytest.raises(UserError) as caught:
        Config.of(table)
    assert message in str(caught.value)


def test_a_partition_that_makes_no_sense_is_refused_before_the_run(project):
    (project / "bad.py").write_text(MINE.replace("np.sort(part)", "np.sort(part) + 99_999"))
    with pytest.raises(UserError, match=r"Halves: train of client 0 has the positions .*; must be from 0 to 119."):
        protofed.run({**SMALL, "partition": {"name": "./bad.py:Halves"}})
    with pytest.raises(UserError, match="must be from 0 to 399"):
        check_partition("./bad.py:Halves")


def test_checks_of_nets_and_partitions(project, command):
    assert check_partition("./parts.py:Halves")[2] == "No training example is with two clients."
    assert "embeddings of size 16" in check_net("./parts.py:Small", shape=(3, 8, 8))[0]
    code, out = command("check", "parts.py", "--shape", "6", "--classes", "2")
    assert (code, out.count("passed all checks")) == (0, 2)
    (project / "plain.py").write_text("class Plain:\n    pass\n")
    assert "plain.py:Plain is a class, and neither a method (derive" in command("check", "./plain.py:Plain")[1]
    (project / "plain.py").write_text("import os\nx = 1\n")
    assert "plain.py:x is of type int, and neither a method" in command("check", "./plain.py:x")[1]
    assert "plain.py:os is of type module, and neither a method" in command("check", "./plain.py:os")[1]
    unused = MINE.replace("self.head = nn", "self.extra = nn.Linear(2, 2)\n        self.head = nn")
    (project / "unused.py").write_text(unused)
    with pytest.raises(UserError, match=r"the parameter body\.extra\.weight has no influence on the logits"):
        check_net("./unused.py:Small", shape=(6,))
    (project / "draws.py").write_text(
        MINE.replace("draw = random_state(seed", "draw = np.random.mtrand._rand or (seed")
    )
    state = np.random.get_state()
    with pytest.raises(UserError, match="draws from a global generator"):
        check_partition("./draws.py:Halves")
    np.random.set_state(state)


def test_an_experiment_with_code_goes_to_another_process(project):
    config = Config.load(None, ["method.name=./mine.py:ProtoAvg", "method.pull=3", "net.name=./parts.py:Small"])
    content = pickle.dumps(config)
    for name in [name for name in sys.modules if name.startswith(("mine_", "parts_"))]:
        del sys.modules[name]
    read = pickle.loads(content)
    assert (read.digest(), read.table()) == (config.digest(), config.table())


def test_workers_and_their_errors_know_the_file(project):
    table = {**SMALL, "method": {"name": "./mine.py:ProtoAvg"}, "engine": {"workers": 2}}
    assert protofed.run(table).summary["method"] == "ProtoAvg"
    (project / "mine.py").write_text(
        tutorial_code().replace("return Shared(trained.params", "return Shared(trained.weights")
    )
    with pytest.raises(UserError, match=r"mine.py, line \d+: ProtoAvg.upload failed with AttributeError: .*weights"):
        protofed.run(table)


@pytest.mark.parametrize(
    ("old", "new", "words", "message"),
    [
        ("y = np.arange(200) % 2", "y = 1 / 0", ["data", "info", "./bad.py:stripes"], "in stripes: ZeroDivisionError"),
        (
            "accuracies = [",
            "oops = nothing[0], [",
            ["measure", "runs/a", "--what", "./bad.py:spread"],
            "in spread: NameError",
        ),
    ],
)
def test_an_error_in_any_part_is_a_message_with_its_line(old, new, words, message, project, command):
    run_mine()
    (project / "bad.py").write_text(MINE.replace(old, new))
    code, out = command(*words)
    assert code == 1
    assert out.startswith(f"protofed: {project / 'bad.py'}, line ")
    assert message in out


@pytest.fixture
def package(project, tmp_path, monkeypatch):
    """An installed package with entry points."""
    folder = tmp_path / "site"
    (folder / "toy").mkdir(parents=True)
    (folder / "toy" / "__init__.py").write_text("")
    (folder / "toy" / "mine.py").write_text(tutorial_code())
    (folder / "toy" / "parts.py").write_text(MINE)
    about = folder / "toy-0.3.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 0.3\n")
    points = {
        "methods": "toyavg = toy.mine:ProtoAvg\nfedavg = toy.mine:ProtoAvg\nbroken = toy.nothing:X",
        "nets": "toynet = toy.parts:Small",
        "datasets": "stripes = toy.parts:stripes",
        "partitions": "halves = toy.parts:Halves",
        "measures": "spread = toy.parts:spread",
        "watchers": "notebook = toy.parts:Notebook",
    }
    (about / "entry_points.txt").write_text("".join(f"[protofed.{kind}]\n{text}\n" for kind, text in points.items()))
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy"]:
        del sys.modules[name]


def test_entry_points_are_names_like_any_other(package):
    from protofed.cli.listing import list_entries

    config = Config.of({"method": {"name": "toyavg", "pull": 2.0}, "net": {"name": "toynet", "width": 9}})
    assert (config.method_name, config.method.pull, config.nets[0].design.width) == ("toyavg", 2.0, 9)
    assert Config.of({"method": {"name": "fedavg"}}).method.__class__.__module__ == "protofed.methods.fedavg"
    with pytest.raises(UserError, match='Did you mean "toyavg"'):
        Config.of({"method": {"name": "toyavgg"}})
    (entry,) = [entry for entry in list_entries("partitions") if entry["name"] == "halves"]
    assert (entry["about"], entry["options"]) == (
        "[toy 0.3] Everybody gets an equal part, cut at random.",
        {"share": 1.0},
    )


@pytest.mark.slow
def test_an_installed_package_is_listed_run_and_opened(package, command):
    code, out = command("list")
    assert code == 0
    for line in (
        "toyavg       [toy 0.3] Clients train one shared model",
        "fedavg       [toy 0.3] It cannot be used: protofed has an entry of this name.",
        "broken       [toy 0.3] It cannot be used: there is no module toy.nothing.",
        "[toy 0.3] A small net of my own.",
        "[toy 0.3] Two classes of stripes.",
        "[toy 0.3] Everybody gets an equal part, cut at random.",
        "[toy 0.3] Writes the rounds to a text file.",
    ):
        assert line in out
    names = ["method.name=toyavg", "net.name=toynet", "data.name=stripes", "partition.name=halves"]
    words = [word for name in [*names, "run.rounds=1", 'run.watchers=["notebook"]'] for word in ("--set", name)]
    assert command("run", *words, "--out", "runs/toy")[0] == 0
    assert 'name = "toyavg"' in Path("runs/toy/config.toml").read_text()
    known_files().unlink()  # the user installed it: that is enough for this very version
    assert command("measure", "runs/toy", "--what", "spread,cost")[0] == 0
    known_files().unlink(missing_ok=True)
    (package / "toy" / "mine.py").write_text(f"{tutorial_code()}\n# 0.4\n")
    assert "has changed since" in command("measure", "runs/toy")[1]
    assert command("compare", "runs/toy")[0] == 0
    code, out = command("check", "toyavg")
    assert (code, "ProtoAvg passed all checks" in out) == (0, True)
    assert 'Did you mean "toyavg"?' in command("run", "--set", "method.name=toyavgg")[1]


def test_nets_given_in_python_on_named_data(project):
    from torch import nn

    def net():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))

    table = {**SMALL, "partition": {"name": "dirichlet", "alpha": 0.5}, "method": {"name": "fedavg"}}
    result = protofed.run(table, "runs/n", nets=[net])
    assert result.state.members.nets[0].name == "nets[0] (Sequential)"
    again = protofed.Result.load("runs/n", nets=[net])
    assert protofed.measure(again)["fairness"].rows == protofed.measure(result)["fairness"].rows
    longer = protofed.run({**table, "run": {"rounds": 3}}, "runs/n", nets=[net], resume=True)
    assert longer.summary["rounds"] == 3
    with pytest.raises(UserError, match=r"protofed.Result.load\(folder, nets=\[...\]\) opens it"):
        protofed.Result.load("runs/n")
    with pytest.raises(UserError, match="other data or nets"):
        protofed.Result.load("runs/n", nets=[lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Linear(9, 10))])
    with pytest.raises(UserError, match="nets: got 3 for 4 clients"):
        protofed.run(table, nets=[net] * 3)


def test_a_function_of_a_notebook_does_not_replace_a_net_of_the_package():
    namespace: dict[str, Any] = {}
    exec("def mlp(shape, classes): ...", namespace)
    before = dict(NETS)
    with pytest.raises(UserError, match=r'protofed has a "mlp" of its own\. Give yours another name'):
        NETS.find(namespace["mlp"])
    assert dict(NETS) == before
