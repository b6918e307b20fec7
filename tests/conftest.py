from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from protofed.data.sources import folder

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _one_thread_and_no_global_draws():
    """One thread, and nothing in the package may touch torch's global generator."""
    torch.set_num_threads(1)
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state()), "something drew from torch's global generator"


@pytest.fixture(scope="session")
def mnist_root() -> str:
    where = folder("")
    if not (where / "mnist.npz").exists():
        pytest.skip(f"no mnist.npz in {where}; set PROTOFED_DATA to the folder that has it")
    return str(where)
