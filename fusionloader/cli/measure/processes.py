"""What a tree of processes costs, read from /proc: CPU seconds and memory."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

TICK = 1.0 / os.sysconf("SC_CLK_TCK")
MEGABYTE = 1e6
IDLE_WINDOW = 0.1
IDLE_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class CpuReading:
    """CPU seconds so far: this process, every living descendant, descendants already reaped."""

    main: float
    living: dict[int, float]
    reaped: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one process in bytes: private, proportional, resident, and its peak resident."""

    pid: int
    uss: int
    pss: int
    rss: int
    peak_rss: int


def descendants(root: int | None = None) -> list[int]:
    """The living processes below ``root`` (this process), zombies left out."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat_fields(int(entry.name))):
            state, parent = fields[0], int(fields[1])
            if state != "Z":
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [os.getpid() if root is None else root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return sorted(found)


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name; empty if the process is gone."""
    try:
        text = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return []
    # The name may hold spaces and parentheses; what follows the last one is regular.
    return text.rpartition(")")[2].split()


def read_cpu() -> CpuReading:
    """The CPU time of this process and of everything below it, to 10 ms for the latter."""
    living = {}
    for pid in descendants():
        if fields := _stat_fields(pid):
            living[pid] = (int(fields[11]) + int(fields[12])) * TICK
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return CpuReading(time.process_time(), living, children.ru_utime + children.ru_stime)


def cpu_between(before: CpuReading, after: CpuReading) -> tuple[float, float]:
    """CPU seconds spent between two readings: (this process, all its descendants)."""
    living = sum(spent - before.living.get(pid, 0.0) for pid, spent in after.living.items())
    # A descendant reaped in between counts with all of its life: take off what came before.
    ended = sum(spent for pid, spent in before.living.items() if pid not in after.living)
    reaped = max(0.0, after.reaped - before.reaped - ended)
    return after.main - before.main, living + reaped


def wait_until_idle(limit: float = 5.0) -> bool:
    """Waits until this process and its descendants rest, at most ``limit`` seconds.

    Some loaders go on prefetching after an epoch; the next contender must not pay for that.
    """
    deadline = time.perf_counter() + limit
    before = read_cpu()
    while time.perf_counter() < deadline:
        time.sleep(IDLE_WINDOW)
        after = read_cpu()
        if sum(cpu_between(before, after)) < IDLE_SHARE * IDLE_WINDOW:
            return True
        before = after
    return False


def read_memory(pid: int) -> Memory | None:
    """The memory of a process, ``None`` if it is gone or not ours to look at."""
    try:
        rollup = _kilobytes(Path("/proc", str(pid), "smaps_rollup").read_text())
        status = _kilobytes(Path("/proc", str(pid), "status").read_text())
    except OSError:
        return None
    return Memory(
        pid,
        uss=rollup.get("Private_Clean", 0) + rollup.get("Private_Dirty", 0),
        pss=rollup.get("Pss", 0),
        rss=rollup.get("Rss", 0),
        peak_rss=status.get("VmHWM", 0),
    )


def _kilobytes(text: str) -> dict[str, int]:
    """The lines ``Name: 123 kB`` of a /proc file, in bytes."""
    values = {}
    for line in text.splitlines():
        parts = line.split()
        if len(parts) == 3 and parts[2] == "kB":
            values[parts[0].rstrip(":")] = int(parts[1]) * 1024
    return values


def read_workers(ours: set[int]) -> list[Memory]:
    """The memory of the descendants that are not in ``ours`` (those there before)."""
    readings = (read_memory(pid) for pid in descendants() if pid not in ours)
    return [reading for reading in readings if reading is not None]


def shared_memory_used() -> int:
    """Bytes in use in /dev/shm, objects already unlinked but still mapped included."""
    facts = os.statvfs("/dev/shm")
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize
