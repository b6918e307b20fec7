"""Freed memory stays with the process, ready for the next step."""

from __future__ import annotations

import ctypes
import platform
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LARGEST, KEPT = 32 << 20, 1 << 30


def keep_freed_memory() -> None:
    """Ask glibc not to give blocks of up to 32 MB back to the system, until a gigabyte is free.

    By itself it keeps little more than its largest block: every step gets the memory of its images anew, page by page.
    Other systems' allocators are left as they are.
    """
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(MMAP_THRESHOLD, LARGEST)
        libc.mallopt(TRIM_THRESHOLD, KEPT)
