"""The public names of the package, and what an import does not do."""

from __future__ import annotations

import subprocess
import sys

import pytest

import protofed
from protofed.experiment import run as run_module


def in_a_new_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", protofed.__all__)
def test_every_public_name_can_be_imported_and_is_described(name):
    value = getattr(protofed, name)
    assert value is getattr(sys.modules[protofed._MODULES[name]], name)
    assert f"- `{name}`: " in protofed.__doc__


def test_the_public_names_are_listed_once():
    assert set(protofed.__all__) == set(protofed._MODULES)
    assert set(dir(protofed)) == {*protofed.__all__, "__version__"}
    with pytest.raises(AttributeError, match="module 'protofed' has no attribute 'runn'"):
        _ = protofed.runn


def test_an_import_loads_no_torch():
    code = "import sys, protofed; print([name for name in ('torch', 'numpy', 'pydantic') if name in sys.modules])"
    assert in_a_new_process(code) == "[]\n"


CALLS = """
import protofed.engines.memory
calls = []
protofed.engines.memory.keep_freed_memory = lambda: calls.append(1)
{then}
print(len(calls))
"""


@pytest.mark.parametrize("then", ["import protofed", "from protofed import *", "import protofed.cli"])
def test_an_import_leaves_the_memory_allocator_alone(then):
    assert in_a_new_process(CALLS.format(then=then)) == "0\n"


def test_a_run_asks_the_memory_allocator_once(monkeypatch):
    calls = []
    monkeypatch.setattr(run_module, "keep_freed_memory", lambda: calls.append(1))
    protofed.run({"run": {"rounds": 1}, "data": {"clients": 2}, "engine": {"workers": 1}})
    assert calls == [1]
