"""Wrong inputs on purpose: one readable message, exit code 2, no traceback, and nothing half-written."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from protofed.data.sources import SOURCES
from protofed.engines.threads import cores
from protofed.nets import NETS
from test_cli import protofed as command  # noqa: F401

SAMPLE = "must be a fraction of the clients above 0 and up to 1.0 (like 0.1), or a whole number of clients"
MNIST = (
    "mnist: there is neither mnist.npz nor train-images-idx3-ubyte(.gz) in none. Get the four files as published by "
    "LeCun et al. (yann.lecun.com/exdb/mnist) and set data.root or $PROTOFED_DATA to the folder that has them, or use "
    "data.name=digits."
)


def made(where: Path) -> None:
    """Files that are wrong in one way each."""
    for name in ("none", "corrupt", "cut", "shape", "labels", "keys"):
        (where / name).mkdir()
    arrays = {
        "x_train": np.zeros((50, 28, 28), np.uint8),
        "y_train": np.zeros(50, np.uint8),
        "x_test": np.zeros((5, 28, 28), np.uint8),
        "y_test": np.zeros(5, np.uint8),
    }
    np.savez(where / "shape" / "mnist.npz", **{**arrays, "x_train": np.zeros((50, 20, 28), np.uint8)})
    np.savez(where / "labels" / "mnist.npz", **{**arrays, "y_test": np.full(5, 12, np.uint8)})
    np.savez(where / "keys" / "mnist.npz", x=np.zeros(3))
    np.savez(where / "cut" / "mnist.npz", **arrays)
    whole = (where / "cut" / "mnist.npz").read_bytes()
    (where / "cut" / "mnist.npz").write_bytes(whole[: len(whole) // 2])
    (where / "corrupt" / "mnist.npz").write_bytes(b"PK\x03\x04 not really")
    (where / "dims.toml").write_text("[[net]]\ndim = 50\n[[net]]\nname = 'mlp'\ndim = 40\n")
    (where / "nets.toml").write_text("[[net]]\ndim = 50\n[[net]]\ndmi = 40\n[[net]]\nname = 'cn'\n")
    (where / "broken.toml").write_text("[run\n")


ALONE = "The experiment has a problem:\n  - "


@pytest.mark.parametrize(
    ("words", "message"),
    [
        # Unknown keys and names
        (
            ["method.pul=1"],
            ALONE
            + 'method.pul: unknown key of fedproto. Did you mean "pull"? Known: between, distance, initial_weights, nearest, outputs, pooling, prototypes, pull, pull_schedule, send.',
        ),
        (
            ["methd.pull=1"],
            ALONE
            + '[methd]: unknown section. Did you mean "method"? Known: attack, data, engine, eval, method, net, partition, privacy, run, system, train, trust.',
        ),
        (
            ["method.name=fedporto"],
            ALONE
            + 'method.name: there is no "fedporto". Did you mean "fedproto"? Known: creff, ditto, fedatt, fedavg, fedbabu, fednh, fedper, fedproto, fedprox, fedrep, fedrod, fedtgp, fesem, fpl, local, mpfedcl, protomargin.',
        ),
        (
            ["data.name=minst"],
            ALONE + f'data.name: there is no "minst". Did you mean "mnist"? Known: {", ".join(sorted(SOURCES))}.',
        ),
        # Wrong types
        (["train.batch=big"], ALONE + 'train.batch: got "big"; must be a whole number'),
        (["run.rounds=2.5"], ALONE + "run.rounds: got 2.5; must be a whole number"),
        (["run.seed=true"], ALONE + "run.seed: got true; must be a whole number"),
        (["net.hidden=7"], ALONE + "net.hidden: got 7; must be a list"),
        (["train.drop_last=1"], ALONE + "train.drop_last: got 1; must be true or false"),
        # Impossible values
        (["run.rounds=0"], ALONE + "run.rounds: got 0; must be 1 or more"),
        (["train.lr=nan"], ALONE + "train.lr: got nan; must be a finite number"),
        (["method.pull=-inf"], ALONE + "method.pull: got -inf; must be a finite number"),
        (["run.sample=0"], ALONE + f"run.sample: got 0; {SAMPLE}"),
        (["run.sample=0.0"], ALONE + f"run.sample: got 0.0; {SAMPLE}"),
        (["run.sample=1.5"], ALONE + f"run.sample: got 1.5; {SAMPLE}"),
        (["run.sample=21"], ALONE + "run.sample: got 21, but there are 20 clients. Use 20 or fewer."),
        (["partition.ways=11"], "partition.ways: got 11, but there are 10 classes. Use 10 or fewer."),
        (
            ["data.clients=2000"],
            "data.clients: got 2000, but there are 1,442 training examples. Use 1,442 or fewer, or more examples (data.limit, if it is set).",
        ),
        (
            ["data.clients=200", "partition.name=dirichlet"],
            "data.clients: got 200, but there are 1,442 training examples, fewer than 10 per client (partition.smallest). Use 144 or fewer, or more examples (data.limit, if it is set).",
        ),
        (
            ["partition.shots=500"],
            "partition.shots: got 500, but class 0 has 143 training examples and the 9 clients that hold it need 4504. Use 13 shots or fewer, fewer clients or fewer ways.",
        ),
        (["partition.test=100"], "partition.test: got 100, but class 0 has 35 test examples. Use 35 or fewer."),
        # Files
        (["data.name=mnist", "data.root=none"], MNIST),
        (
            ["data.name=mnist", "data.root=corrupt"],
            "corrupt/mnist.npz is damaged: its end is missing. Get the file again, or write it again.",
        ),
        (
            ["data.name=mnist", "data.root=cut"],
            "cut/mnist.npz is damaged: its end is missing. Get the file again, or write it again.",
        ),
        (
            ["data.name=mnist", "data.root=keys"],
            "keys/mnist.npz has no array x_train; it has x. docs/data.md describes the file.",
        ),
        (
            ["data.name=mnist", "data.root=shape"],
            "mnist: the train part in shape/mnist.npz has inputs [50, 20, 28] and labels [50]; must be [n, 28, 28] and [n]. docs/data.md describes the file.",
        ),
        (
            ["data.name=mnist", "data.root=labels"],
            "mnist: the test part in labels/mnist.npz: its labels must be whole numbers from 0 to 9. docs/data.md describes the file.",
        ),
        (
            ["broken.toml"],
            "broken.toml is not a readable TOML file: Expected ']' at the end of a table declaration (at line 1, column 5).",
        ),
        (
            ["nowhere.toml"],
            "There is no experiment file nowhere.toml. `protofed list recipes` shows those that come with protofed.",
        ),
        # Nets
        (
            ["dims.toml"],
            "fedproto needs embeddings of the same size: clients 0-9 have mlp(dim=50) of dim 50, 10-19 mlp(dim=40) of dim 40. Give every net the same dim (net.dim).",
        ),
        (
            ["nets.toml"],
            'The experiment has 2 problems:\n  - net[2].dmi: unknown key of mlp. Did you mean "dim"? Known: bias, dim, dropout, embedding, hidden, logits.\n  - net[3].name: there is no "cn". Did you mean "cnn"? Known: '
            + ", ".join(sorted(NETS))
            + ".",
        ),
        (
            ["net.name=cnn"],
            "net cnn needs images of at least 16x16 with channels first, got inputs of shape (1, 8, 8). Use net mlp or larger images (if it is an encoder: data.encoder_size).",
        ),
        # More than a machine has
        (
            ["engine.workers=100000"],
            f"engine.workers: got 100,000, but this machine has {cores()} cores. Use {cores()}, or 0 for one per core.",
        ),
        # What does not fit the data
        (
            ["data.name=spiral", "net.name=mlp_spiral", "partition.name=iid", "train.augment=['flip']"],
            "train.augment: got ['flip'], but inputs of shape (2,) are not images. Set it to [].",
        ),
        # All at once
        (
            ["run.rounds=0", "train.lr=fast", "method.name=x", "nte.dim=3", "rounds=3"],
            'The experiment has 5 problems:\n  - --set rounds=3: must look like section.key=value, for example --set train.lr=0.1\n  - [nte]: unknown section. Did you mean "net"? Known: attack, data, engine, eval, method, net, partition, privacy, run, system, train, trust.\n  - run.rounds: got 0; must be 1 or more\n  - train.lr: got "fast"; must be a number\n  - method.name: there is no "x". Known: creff, ditto, fedatt, fedavg, fedbabu, fednh, fedper, fedproto, fedprox, fedrep, fedrod, fedtgp, fesem, fpl, local, mpfedcl, protomargin.',
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_input_is_one_message(words, message, command, tmp_path):  # noqa: F811
    made(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    given = [part for word in words for part in ([word] if word.endswith(".toml") else ["--set", word])]
    code, out, err = command("run", *given, "--out", "out")
    assert (code, out, err) == (2, "", f"protofed: {message}\n")
    assert sorted(tmp_path.rglob("*")) == before
    assert not re.search(r"Traceback|None|Error\b", err)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "result.json",
            "{}",
            "a/result.json is incomplete (no method). Delete it and run `protofed run --resume --out a` to recreate it.",
        ),
        ("result.json", "{", "a/result.json cannot be read: "),
        ("result.json", "3", "a/result.json is incomplete (no method)."),
        ("partition.json", "[]", "a/partition.json is incomplete (no sha256)."),
        ("clients.csv", "hi", "a/clients.csv is damaged: it has no rows of clients. Delete it and run `protofed run"),
        ("clients.csv", "client,train\n1,x\n", "a/clients.csv cannot be read: invalid literal for int()"),
        ("clients.csv", b"\xff\x00\x81", "a/clients.csv cannot be read: 'utf-8' codec can't decode"),
        ("clients.csv", None, "a/clients.csv cannot be read: [Errno 2] No such file"),
        ("rounds.jsonl", None, "a/rounds.jsonl is missing. Run `protofed run --resume --out a` to recreate it."),
        ("config.toml", "[run]\nseed = 0\n", "a/config.toml is incomplete: [run] or a part of it is missing."),
        ("config.toml", "[run]\nseed = 0\nrounds = 1\n", "a/config.toml is incomplete: [data] or a part of it"),
    ],
)
def test_damaged_files_of_a_run_are_said(file, content, message, command, tmp_path):  # noqa: F811
    command("run", "--quiet", "--set", "run.rounds=1", "--set", "data.clients=2", "--out", "a")
    if content is None:
        (tmp_path / "a" / file).unlink()
    else:
        (tmp_path / "a" / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    code, _, err = command("compare", "a")
    assert code == 2
    assert err.startswith(f"protofed: {message}")
    if file == "config.toml":
        assert command("run", "--resume", "--out", "a")[2].startswith(f"protofed: {message}")
    elif "to recreate it" in message:
        (tmp_path / "a" / file).unlink(missing_ok=True)
        assert command("run", "--quiet", "--resume", "--out", "a")[0] == 0
        assert command("compare", "a")[0] == 0


@pytest.mark.parametrize("hidden", ["[10000000000000]", "[1000000000000000000]"])
def test_a_net_that_does_not_fit_into_memory_is_said(hidden, command, tmp_path):  # noqa: F811
    code, _, err = command("run", "--set", f"net.hidden={hidden}", "--out", "out")
    assert code == 2
    assert err.startswith(f"protofed: net mlp(hidden={hidden}) does not fit into memory (")
    assert err.endswith("). Use a smaller net.\n")
    assert not (tmp_path / "out").exists()


def test_too_little_memory_later_on_is_a_message(command, monkeypatch):  # noqa: F811
    def fail(*args, **options):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")

    monkeypatch.setattr("protofed.experiment.runner.Runner.one_round", fail)
    code, _, err = command("run", "--set", "data.clients=2", "--out", "out")
    assert code == 1
    assert err.startswith("protofed: There is not enough memory (DefaultCPUAllocator: can't allocate memory")
    assert "Traceback" not in err


def test_a_damaged_line_of_rounds_is_said_and_an_unfinished_last_one_is_left_out(command, tmp_path):  # noqa: F811
    command("run", "--quiet", "--set", "run.rounds=3", "--set", "data.clients=2", "--out", "a")
    file = tmp_path / "a" / "rounds.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    for damaged, number in ((lines[0] + "garbage\n" + lines[2], 2), ("".join(lines[:2]) + "3\n", 3)):
        file.write_text(damaged)
        for words in (["compare", "a"], ["draw", "a", "--what", "curves", "--out", "x.png"]):
            code, _, err = command(*words)
            assert code == 2
            assert err == (
                f"protofed: a/rounds.jsonl, line {number} is damaged: it is not the row of a round. "
                "Delete it and run `protofed run --resume --out a` to recreate it.\n"
            )
    file.write_text("".join(lines[:2]) + lines[2][:9])
    assert command("compare", "a")[0] == 0


def test_a_recipe_that_is_not_text_is_listed_all_the_same(command, tmp_path):  # noqa: F811
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "odd.toml").write_bytes(b"# \xff\xfe\n")
    assert "odd.toml" in command("list", "recipes")[1]


def test_init_writes_an_experiment_file_that_is_the_default_with_every_key_explained(command, tmp_path):  # noqa: F811
    from protofed.experiment.config import Config

    code, out, _ = command("init", "mine.toml")
    assert (code, out) == (0, "Written to mine.toml. Edit it, then run: protofed run mine.toml\n")
    text = (tmp_path / "mine.toml").read_text(encoding="utf-8")
    assert Config.load(tmp_path / "mine.toml") == Config.load()
    lines = text.splitlines()
    for place, line in enumerate(lines):
        if re.match(r"\w+ = ", line):
            assert lines[place - 1].startswith("# "), line
    assert command("init", "mine.toml") == (2, "", "protofed: mine.toml already exists. Give another name.\n")
    command("init", "other.toml", "--set", "method.name=fedavg", "--set", "partition.name=dirichlet")
    assert Config.load(tmp_path / "other.toml").method_name == "fedavg"
    assert "which is the value shown here." in lines[1]
    assert "which is shown by `protofed init` without --set." in (tmp_path / "other.toml").read_text(encoding="utf-8")


def test_every_option_of_everything_is_explained():
    from dataclasses import fields

    from protofed.data.partitions import PARTITIONS
    from protofed.experiment.options import option_descriptions
    from protofed.experiment.sections import DataSection, EngineSection, EvalSection, RunSection, SystemSection
    from protofed.methods import METHODS
    from protofed.nets import NETS
    from protofed.training import TrainSection

    for kind in (
        RunSection,
        DataSection,
        TrainSection,
        EvalSection,
        SystemSection,
        EngineSection,
        *PARTITIONS.values(),
        *METHODS.values(),
        *NETS.values(),
    ):
        assert [field.name for field in fields(kind) if field.name not in option_descriptions(kind)] == [], kind


def test_the_shell_completes_commands(monkeypatch, capsys):
    from protofed import cli

    monkeypatch.setenv("_PROTOFED_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "protofed co")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setattr("sys.argv", ["protofed"])
    with pytest.raises(SystemExit):
        cli.app(prog_name="protofed")
    assert "compare" in capsys.readouterr().out
