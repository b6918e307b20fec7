"""What a command imports, and the progress of slow pictures."""

from __future__ import annotations

import io
import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from protofed.experiment.progress import ProgressLine
from protofed.pictures import tsne

SLOW = ("torch", "numpy", "pandas", "sklearn", "matplotlib", "scipy", "flwr", "rich.markdown", "typer.rich_utils")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["run", "--help"]], ids=" ".join)
def test_help_imports_nothing_slow(words):
    code = f"""import sys
from protofed.cli import app
try:
    app({words!r})
except SystemExit:
    pass
print("imported:", [name for name in {SLOW!r} if name in sys.modules])"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1] == "imported: []"
    assert "Usage" in said or words == ["--version"]


@pytest.mark.slow
def test_a_first_round_does_not_import_the_compiler_of_torch():
    code = """import sys, protofed
protofed.run({"run": {"rounds": 1}, "data": {"clients": 4}, "engine": {"name": "stacked", "workers": 1}})
print("imported:", [name for name in ("torch._dynamo", "sympy", "pandas", "matplotlib") if name in sys.modules])"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1] == "imported: []"


def test_tsne_shows_its_progress_and_the_same_points(monkeypatch):
    z = np.random.RandomState(0).normal(size=(40, 5)).astype(np.float32)
    quiet = tsne.project_by_tsne(z)
    shown = []
    monkeypatch.setattr(tsne, "wants_progress", lambda progress: True)
    monkeypatch.setattr(ProgressLine, "show", lambda self, done, total, text: shown.append((done, total, text)))
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    assert np.array_equal(tsne.project_by_tsne(z), quiet)
    assert len(shown) > 5
    assert shown[0][1:] == (1000, f"t-SNE of 40 points, step {shown[0][0]} of 1,000")
    assert out.getvalue() == ""


def test_the_table_of_start_up_is_what_was_measured():
    top = Path(__file__).parents[1]
    script = runpy.run_path(str(top / "benchmarks" / "startup.py"))
    kept = json.loads(script["KEPT"].read_text(encoding="utf-8"))
    assert script["table"](kept) in (top / "docs" / "performance.md").read_text(encoding="utf-8")
