"""Has the C library reuse freed memory, instead of giving it back to the system."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
_TUNABLE = re.compile(r"malloc.*_threshold=")
_LARGEST_IN_HEAP = 32 << 20  # the largest value that glibc accepts


def keep_freed_memory(most_bytes: int) -> None:
    """Keeps up to ``most_bytes`` that this process frees.

    By default each answer of a read, or tensor of a sample, gets new pages. Their first touch takes
    a third of the time of a read, and longer than to copy a tensor. What the environment says of
    freed memory holds instead.
    """
    # No other variables: a worker whose code reads its rank serves no other rank.
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if any(name in os.environ for name in _SETTINGS) or _TUNABLE.search(tunables):
        return
    with contextlib.suppress(AttributeError, OSError):  # C libraries other than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_IN_HEAP)
        mallopt(_M_TRIM_THRESHOLD, most_bytes)
