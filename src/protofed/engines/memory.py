"""A setting of glibc's malloc that keeps freed memory in the process, ready for the next training step.

Importing protofed changes nothing. `protofed.run` calls `keep_freed_memory` once, before training, because malloc's
default returns the memory of a step to the system: every step would get its memory again, page by page. malloc has no
narrower scope, so the setting holds for the entire process and stays after the run.
"""

from __future__ import annotations

import ctypes
import platform
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
_LARGEST_BLOCK, _LARGEST_FREE_TOTAL = 32 << 20, 1 << 30  # bytes


def keep_freed_memory() -> None:
    """Tell glibc to keep freed blocks of up to 32 MB in the process, up to one gigabyte of free memory.

    By default glibc keeps little more than its largest block. The allocators of other systems are left unchanged.
    """
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
        libc.mallopt(_TRIM_THRESHOLD, _LARGEST_FREE_TOTAL)
