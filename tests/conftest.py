from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from protofed.data.dataset import data_folder
from protofed.data.partitions import PARTITIONS
from protofed.data.sources import SOURCES
from protofed.methods import METHODS
from protofed.nets import NETS

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _one_thread_and_no_global_draws(request):
    """One thread, and nothing in the package may touch a global generator (Python's own is hypothesis's, too)."""
    torch.set_num_threads(1)
    before, also = torch.get_rng_state(), np.random.get_state()
    yield
    assert torch.equal(before, torch.get_rng_state()), "something drew from torch's global generator"
    if "hypothesis" not in request.keywords and not hasattr(request.function, "hypothesis"):
        assert np.array_equal(also[1], np.random.get_state()[1]), "something drew from numpy's global generator"


@pytest.fixture(autouse=True)
def _own_code_is_forgotten():
    """Classes that a test gives to an experiment are registered by name; the next test does not know them."""
    before = [(registry, dict(registry)) for registry in (METHODS, PARTITIONS, NETS, SOURCES)]
    yield
    for registry, entries in before:
        registry.clear()
        registry.update(entries)


@pytest.fixture(autouse=True)
def _figures_are_closed():
    """Figures that a test has looked at stay open in matplotlib, which warns of more than twenty."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


@pytest.fixture(scope="session", autouse=True)
def _own_list_of_known_code(tmp_path_factory):
    """The list of the code that was run is not the user's."""
    before = os.environ.get("XDG_CONFIG_HOME")
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))
    yield
    if before is None:
        del os.environ["XDG_CONFIG_HOME"]
    else:
        os.environ["XDG_CONFIG_HOME"] = before


@pytest.fixture(scope="session")
def mnist_root() -> str:
    where = data_folder("")
    if not (where / "mnist.npz").exists():
        pytest.skip(f"no mnist.npz in {where}; set PROTOFED_DATA to the folder that has it")
    return str(where)
