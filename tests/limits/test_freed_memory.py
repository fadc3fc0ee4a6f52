"""Freed memory that a process keeps for what it allocates next."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes
from fusionloader.system.freed_memory import keep_freed_memory

def resident():
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * 4096

keep_freed_memory(128 << 20)
library, before = ctypes.CDLL(None), resident()
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [library.malloc(1 << 20) for _ in range(64)]
for block in blocks:
    ctypes.memset(block, 1, 1 << 20)
for block in blocks:
    library.free(block)
print(resident() - before)
"""


@pytest.mark.skipif(os.confstr("CS_GNU_LIBC_VERSION") is None, reason="of glibc")
@pytest.mark.parametrize(
    ("setting", "is_kept"),
    [
        ("MALLOC_ARENA_MAX=2", True),
        ("MALLOC_TRIM_THRESHOLD_=65536", False),
        ("GLIBC_TUNABLES=glibc.malloc.mmap_threshold=65536", False),
    ],
)
def test_it_is_kept_unless_the_environment_says_otherwise(setting, is_kept):
    environment = {**os.environ, **dict([setting.split("=", 1)])}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (int(done.stdout) > 32 << 20) is is_kept
