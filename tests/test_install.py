"""A wheel, built and installed into an empty environment, has all that its commands need."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment in which the wheel is installed.

    torch and the other requirements are those of the environment that runs the tests: a .pth file adds its packages,
    so that this takes seconds. protofed is installed without requirements, and not from there.
    """
    where = tmp_path_factory.mktemp("install")
    source = where / "source"
    for name in ("src", "recipes", "docs/results/data"):
        shutil.copytree(TOP / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(TOP / name, source / name)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", where, source]
    made = subprocess.run(build, capture_output=True, text=True, timeout=250)
    assert made.returncode == 0, made.stderr
    (wheel,) = where.glob("*.whl")
    venv.create(where / "env", with_pip=False)
    (packages,) = (where / "env").glob("lib/python*/site-packages")
    install = [sys.executable, "-m", "pip", "--python", str(where / "env"), "install", "--no-deps", "-q", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=250)
    own = [path for path in site.getsitepackages() if (Path(path) / "torch").is_dir()]
    (packages / "zz_requirements.pth").write_text("\n".join(own))
    return where / "env" / "bin" / "python"


def call(python: Path, where: Path, *words: str, code: int = 0) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    made = subprocess.run([python, *words], cwd=where, capture_output=True, text=True, env=environment, timeout=250)
    assert made.returncode == code, made.stderr
    return made.stdout


@pytest.mark.slow
def test_a_wheel_has_everything(python, tmp_path):
    file = call(python, tmp_path, "-c", "import protofed; print(protofed.__file__)").strip()
    assert str(python.parents[1]) in file, "this must be the installed package"
    (wheel,) = python.parents[2].glob("*.whl")
    names = {name.rpartition("/")[2] for name in zipfile.ZipFile(wheel).namelist()}
    assert {"py.typed", "digits-n3.toml", "fedproto-table1.json"} <= names
    assert "digits-n3.toml" in call(python, tmp_path, "-m", "protofed", "list", "recipes")
    small = ["--set", "run.rounds=1", "--set", "data.clients=2", "--quiet"]
    call(python, tmp_path, "-m", "protofed", "run", "recipes/digits-n3.toml", *small, "--out", "a")
    assert (tmp_path / "a" / "result.json").exists()
    assert "a  " in call(python, tmp_path, "-m", "protofed", "compare", "a")
    shown = call(python, tmp_path, "-m", "protofed", "reproduce", "fedproto-table1", "--list")
    assert "fedproto-table1" in shown


@pytest.mark.slow
def test_a_kept_table_is_shown_from_the_wheel(python, tmp_path):
    words = ["reproduce", "fedproto-table1", "--kept", "fedproto-table1.json", "--finished", "--format", "latex"]
    out = call(python, tmp_path, "-m", "protofed", *words)
    assert r"\begin{tabular}" in out
    assert "fedproto" in out


@pytest.mark.slow
def test_the_command_is_installed(python, tmp_path):
    script = python.with_name("protofed")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    made = subprocess.run([script, "--version"], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert made.stdout.startswith("protofed 0")
