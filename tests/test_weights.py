"""Nets that start from the layers of a file, and encoders that are frozen."""

from __future__ import annotations

import json

import numpy as np
import torch
from safetensors.torch import save_file

import protofed
from protofed.data.sources import SOURCES
from test_cli import protofed as command  # noqa: F401


def test_nets_start_from_the_layers_of_a_file_and_say_which(command, tmp_path):  # noqa: F811
    command("run", "--quiet", "--set", "run.rounds=2", "--set", "data.clients=3", "--out", "a")
    command("export", "a", "--client", "0", "--out", "w.safetensors")
    words = ("--set", "run.rounds=1", "--set", "data.clients=3", "--set", "net.weights=w.safetensors")
    code, out, _ = command("run", *words, "--set", "net.dim=20", "--out", "b")
    assert code == 0
    assert (
        "net mlp(dim=20): 3 of 6 tensors from w.safetensors; at random: body.fc2.weight, body.fc2.bias, head.out.weight"
        in out
    )
    members = protofed.Result.load(tmp_path / "b").state.members
    assert members.nets[0].initial_params == {}  # the folder needs the file no more
    started = protofed.Config.load(tmp_path / "b" / "config.toml")
    from protofed.experiment.members import Members

    first = Members.of(started).client(0, 0, 2).fresh_params()
    assert torch.equal(first["body.fc1.weight"], protofed.Result.load(tmp_path / "a").model(0).body.fc1.weight)
    (tmp_path / "w.safetensors").unlink()
    assert command("run", *words)[2] == "protofed: There is no file w.safetensors to read weights from.\n"


def test_a_resumed_run_notices_other_weights(command, tmp_path):  # noqa: F811
    save_file({"head.out.bias": torch.zeros(10)}, tmp_path / "w.safetensors")
    words = ("--set", "run.rounds=1", "--set", "data.clients=3", "--set", "net.weights=w.safetensors", "--quiet")
    command("run", *words, "--out", "a")
    save_file({"head.out.bias": torch.ones(10)}, tmp_path / "w.safetensors")
    assert "was started with other weights" in command("run", "--resume", "--out", "a", "--set", "run.rounds=2")[2]


def test_a_frozen_encoder_turns_the_data_into_features_once(command, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "cache"))
    command("run", "--quiet", "--set", "run.rounds=5", "--set", "data.clients=3", "--out", "a")
    command("export", "a", "--client", "0", "--out", "e.safetensors")
    words = ("--set", "data.encoder=e.safetensors", "--set", "net.name=mlp_features", "--set", "run.rounds=2")
    code, out, _ = command("run", *words, "--out", "b")
    assert code == 0
    assert "digits (features of e.safetensors)" in out
    (kept,) = (tmp_path / "cache").glob("*.npy")
    features = np.load(kept)
    assert features.shape == (1797, 50)
    model = protofed.Result.load(tmp_path / "a").state.model(0)
    expected = model.net.features(model.params, SOURCES["digits"]("").train)[0]
    np.testing.assert_allclose(features[:1442], expected, rtol=1e-5, atol=1e-6)
    kept.write_bytes(kept.read_bytes())
    before = kept.stat().st_mtime_ns
    command("run", *words, "--quiet", "--out", "c")
    assert kept.stat().st_mtime_ns == before
    rows = [(tmp_path / name / "rounds.jsonl").read_text().splitlines()[-1] for name in "bc"]
    assert json.loads(rows[0])["loss"] == json.loads(rows[1])["loss"]
    np.savez(tmp_path / "wide.npz", x=np.zeros((30, 1, 9, 9)), y=np.arange(30) % 3)
    wide = (
        "--set",
        "data.name=npz",
        "--set",
        "data.root=wide.npz",
        "--set",
        "partition.name=iid",
        "--set",
        "data.clients=2",
    )
    assert "body.fc1.weight would be random" in command("run", *wide, "--set", "data.encoder=e.safetensors")[2]
    save_file({"w": torch.ones(1)}, tmp_path / "odd.safetensors")
    assert "does not say which net its weights belong to" in command("run", "--set", "data.encoder=odd.safetensors")[2]
