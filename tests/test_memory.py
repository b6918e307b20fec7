"""Freed memory stays with the process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
from protofed.engines.memory import keep_freed_memory

def step():
    [b"x" * (10 << 20) for _ in range(4)]  # all of them are free in the end

{keep}
for _ in range(4):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked to")
def test_memory_that_was_freed_is_used_again_without_new_pages():
    def told(keep: str) -> int:
        code = FAULTS.format(keep=keep)
        return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)

    assert told("keep_freed_memory()") < 1000 < told("")
