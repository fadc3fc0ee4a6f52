"""What a process holds of the system: processes, threads, descriptors, memory, semaphores."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import sys
from collections import Counter
from pathlib import Path

import psutil

_SELF = Path("/proc/self")
_NUMBER = re.compile(r"\d+")


def held() -> Counter[str]:
    """Counts what this process holds, after a collection.

    Children, threads, descriptors by what they are of, and the maps of shared memory, named
    semaphores among them. Python's own helpers of multiprocessing, which live as long as the
    process, count too. A child counts alike whether it runs or sleeps at this moment.
    """
    gc.collect()
    counts: Counter[str] = Counter()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            ended = child.status() == psutil.STATUS_ZOMBIE
            counts["processes not waited for" if ended else "processes"] += 1
    counts["threads"] = len(os.listdir(_SELF / "task"))
    for fd in os.listdir(_SELF / "fd"):
        with contextlib.suppress(OSError):  # that of this listing
            counts[f"descriptor {_kind(os.readlink(_SELF / 'fd' / fd))}"] += 1
    for line in (_SELF / "maps").read_text(errors="replace").splitlines():
        if "memfd:" in line or "/dev/shm/" in line:
            counts["maps of shared memory"] += 1
    return counts


def _kind(target: str) -> str:
    """Returns what a descriptor is of: ``socket``, ``pipe``, ``memfd``, or the file's path."""
    if target.startswith("/memfd:"):
        return "memfd"
    return target.split(":")[0] if ":[" in target else _NUMBER.sub("N", target)


def anonymous_bytes() -> int:
    """Bytes of memory in use that belong to no file, which other processes would change."""
    rollup = (_SELF / "smaps_rollup").read_text()
    return int(re.findall(r"^Anonymous: *(\d+) kB", rollup, re.MULTILINE)[0]) << 10


class _MallocInfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def allocated() -> dict[str, int]:
    """What has been allocated and not freed: bytes of C's ``malloc``, blocks of Python's objects.

    Unlike memory in use, it does not grow where freed memory lies in pieces.
    """
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _MallocInfo
    info = mallinfo()
    return {"malloc": info.uordblks + info.hblkhd, "blocks": sys.getallocatedblocks()}


def anonymous_by_map() -> Counter[str]:
    """The same by mapping: its path, or the size of one without a name in MiB."""
    counts: Counter[str] = Counter()
    name = ""
    for line in (_SELF / "smaps").read_text(errors="replace").splitlines():
        first, *rest = line.split(maxsplit=5)
        if first == "Anonymous:":
            counts[name] += int(rest[0]) << 10
        elif not first.endswith(":"):
            begin, end = (int(word, 16) for word in first.split("-"))
            name = rest[4] if len(rest) == 5 else f"unnamed, {(end - begin) >> 20} MiB"
    return counts
