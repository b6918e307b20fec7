"""Hostile messages and files: documented errors only, nothing unpickled, nothing written outside a run folder."""

from __future__ import annotations

import ast
import io
import json
import runpy
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from safetensors.torch import save, save_file

import protofed
from protofed.data.npz_files import read_npz
from protofed.engines.flower import wire
from protofed.engines.flower.client_answers import read_report
from protofed.engines.flower.wire import record_tensors
from protofed.errors import UserError
from protofed.experiment.config import Config, read_toml
from protofed.experiment.folder import Folder, write_atomically
from protofed.experiment.stored import read_plan
from protofed.messages import flatten
from protofed.methods import METHODS
from protofed.methods.fedproto import Bank
from protofed.nets.weights import read_weights
from toys import bank

TOP = Path(__file__).parents[1]
SOURCES = sorted((TOP / "src" / "protofed").rglob("*.py"))
FUZZ = runpy.run_path(str(TOP / "scripts" / "fuzz.py"))
TABLE = {"data": {"clients": 3}, "run": {"rounds": 1}}


class Payload:
    """Unpickling it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


# ---- fuzzing ----


@pytest.mark.parametrize("target", FUZZ["TARGETS"])
def test_readers_raise_documented_errors_only(target, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda file: None)
    outcomes = FUZZ["fuzz"](150, 7, target)
    assert sum(outcomes.values()) == 150
    assert outcomes["refused"] > 0 or target in ("checkpoint",)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", FUZZ["TARGETS"])
def test_readers_raise_documented_errors_only_for_100000_inputs(target):
    each = -(-100_000 // len(FUZZ["TARGETS"]))
    assert sum(FUZZ["fuzz"](each, 0, target).values()) == each


# ---- pickles ----


def calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_path_unpickles(path):
    """No module that unpickles is imported, and numpy and torch are told not to."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name.partition(".")[0] for name in modules} & {
        "pickle",
        "dill",
        "cloudpickle",
        "joblib",
        "shelve",
        "marshal",
    }
    for name, call in calls(tree):
        options = {word.arg: ast.unparse(word.value) for word in call.keywords}
        if name == "np.load":
            assert options.get("allow_pickle") == "False", ast.unparse(call)
        if name == "torch.load":
            assert options.get("weights_only") == "True", ast.unparse(call)


def test_files_with_code_are_refused_and_the_code_is_not_run(tmp_path):
    ran = tmp_path / "ran"
    objects = np.array([Payload(ran)], dtype=object)
    np.savez(tmp_path / "a.npz", x=objects, y=np.zeros(1))
    with pytest.raises(UserError, match="holds Python objects, which are not read because that could run code"):
        read_npz(tmp_path / "a.npz")
    torch.save({"w": Payload(ran)}, tmp_path / "a.pt")
    with pytest.raises(UserError, match="cannot be read as a state dict"):
        read_weights(tmp_path / "a.pt")
    file = io.BytesIO()
    np.save(file, objects, allow_pickle=True)
    array = Array("object", (1,), "numpy.ndarray", file.getvalue())
    with pytest.raises(ValueError, match="cannot be read"):
        record_tensors(RecordDict({"tensors": ArrayRecord({"/w": array})}))
    assert not ran.exists()


# ---- npz, safetensors, TOML ----


def test_npz_members_cannot_leave_the_file_or_pretend_to_be_arrays(tmp_path):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../outside.npy", b"no array")
        archive.writestr("x.npy", b"no array either")
    with pytest.raises(UserError, match="is damaged"):
        read_npz(path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.npz"]


def header(shape: tuple[int, ...]) -> bytes:
    """A .npy file without numbers that promises this shape."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


def test_a_header_that_promises_terabytes_is_refused_before_memory_is_reserved(tmp_path):
    array = Array("float32", (1,), "numpy.ndarray", header((2**40,)))
    with pytest.raises(ValueError, match=r"it has 0 bytes, too few for the shape"):
        record_tensors(RecordDict({"tensors": ArrayRecord({"/w": array})}))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", header((2**45,)))
    with pytest.raises(UserError, match="is damaged"):
        read_npz(tmp_path / "a.npz")


def test_messages_have_a_limit(monkeypatch):
    monkeypatch.setattr(wire, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match="at most 100 are read"):
        record_tensors(wire.to_records({"w": torch.zeros(100)}, {}))


def test_a_few_bytes_cannot_ask_for_all_memory():
    """Prototypes are sent without empty rows: 12 bytes of `shape` could ask for terabytes when they are unpacked."""
    like = Bank(bank({0: [1.0, 2.0]}))
    tensors = flatten(like) | {"prototypes/shape": torch.tensor([2**20, 2**10, 2**10], dtype=torch.int32)}
    figures = {"round": 0, "num_examples": 1, "steps": 1, "work": 1.0, "terms": {}, "examples_seen": 1.0}
    with pytest.raises(ValueError, match=r"has the shape \[1048576, 1024, 1024\]; must be \[3, 1, 2\]"):
        read_report(METHODS["fedproto"](), 0, tensors, figures, like, None)
    assert read_report(METHODS["fedproto"](), 0, flatten(like), figures, like, None).upload.num_examples == 1


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 5000, "a = " + "9" * 5000, "[" + ".".join("a" * 3000) + "]", "\0", '"']
)
def test_toml_that_no_person_writes_is_a_message(text, tmp_path):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(UserError):
        Config.of(read_toml(tmp_path / "a.toml"))


def test_safetensors_with_a_false_header_are_refused(tmp_path):
    content = save({"w": torch.zeros(3)})
    for broken in (b"\xff" * 8 + content[8:], content[:20], content.replace(b"[0,12]", b"[0,99]"), b""):
        (tmp_path / "a.safetensors").write_bytes(broken)
        with pytest.raises(UserError, match=r"cannot be read as a \.safetensors file"):
            read_weights(tmp_path / "a.safetensors")
    save_file({"../../w": torch.zeros(3)}, tmp_path / "b.safetensors")
    assert list(read_weights(tmp_path / "b.safetensors")) == ["../../w"]  # a name, never a path


# ---- run folders of other people ----


def test_a_run_folder_with_a_linked_folder_is_refused_and_nothing_outside_is_deleted(tmp_path):
    """Old checkpoints are deleted: in a linked folder these would be somebody's files."""
    run, precious = tmp_path / "run", tmp_path / "precious"
    protofed.run(TABLE, run)
    precious.mkdir()
    for name in ("000000.json", "letter.json"):
        (precious / name).write_text("{}")
    (run / "checkpoint").rename(tmp_path / "elsewhere")
    (run / "checkpoint").symlink_to(precious)
    with pytest.raises(UserError, match="is a symbolic link, which is not followed"):
        protofed.run({**TABLE, "run": {"rounds": 2}}, run, resume=True)
    assert sorted(file.name for file in precious.iterdir()) == ["000000.json", "letter.json"]


def test_a_linked_temporary_file_does_not_lead_outside(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".a.json.new").symlink_to(victim)
    write_atomically(tmp_path / "a.json", b"new")
    assert victim.read_text() == "mine"
    assert (tmp_path / "a.json").read_bytes() == b"new"


def test_a_linked_file_of_rounds_is_replaced_and_not_followed(tmp_path):
    run, victim = tmp_path / "run", tmp_path / "victim"
    protofed.run(TABLE, run)
    victim.write_bytes((run / "rounds.jsonl").read_bytes())
    before = victim.read_bytes()
    (run / "rounds.jsonl").unlink()
    (run / "rounds.jsonl").symlink_to(victim)
    protofed.run({**TABLE, "run": {"rounds": 2}}, run, resume=True)
    assert victim.read_bytes() == before
    assert len(Folder(run).rounds()) == 2


@pytest.mark.parametrize("name", ["../outside", "/etc", "a/../../outside"])
def test_the_plan_of_a_sweep_cannot_name_folders_outside(name, tmp_path):
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    (sweep / "plan.json").write_text(json.dumps({"runs": [{"setting": "a", "seed": 0, "folder": name}]}))
    with pytest.raises(UserError, match=r"plan\.json cannot be read"):
        read_plan(sweep)


# ---- requirements ----


def test_every_pinned_package_has_a_hash(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hash_requirements.py", "--check"])
    runpy.run_path(str(TOP / "scripts" / "hash_requirements.py"), run_name="__main__")
    assert "packages with their hashes" in capsys.readouterr().out
    lines = (TOP / "requirements.hashes.txt").read_text().splitlines()[1:]
    assert all("--hash=sha256:" in line for line in lines)
    assert "torch" not in {line.partition("==")[0] for line in lines}
