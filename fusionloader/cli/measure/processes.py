"""CPU seconds and memory of a tree of processes, read from /proc."""

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
    """CPU seconds so far: of this process, of running descendants by pid, of reaped ones."""

    main: float
    running: dict[int, float]
    reaped: float


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of one process in bytes: private, proportional, resident, and its peak resident."""

    pid: int
    uss: int
    pss: int
    rss: int
    peak_rss: int


def descendants(root: int | None = None) -> list[int]:
    """Returns the descendants of ``root`` (this process) that run; no zombies."""
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
    """Returns the fields of /proc/PID/stat after the command's name; none if it has ended."""
    try:
        text = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return []
    # The name may contain spaces and parentheses: split after the last one.
    return text.rpartition(")")[2].split()


def read_cpu() -> CpuReading:
    """Reads the CPU time of this process and of its descendants, the latter to 10 ms."""
    running = {}
    for pid in descendants():
        if fields := _stat_fields(pid):
            running[pid] = (int(fields[11]) + int(fields[12])) * TICK
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return CpuReading(time.process_time(), running, children.ru_utime + children.ru_stime)


def cpu_between(before: CpuReading, after: CpuReading) -> tuple[float, float]:
    """Returns the CPU seconds between two readings: (this process, all its descendants)."""
    running = sum(spent - before.running.get(pid, 0.0) for pid, spent in after.running.items())
    # A descendant reaped in between counts with its whole run time: subtract the earlier part.
    ended = sum(spent for pid, spent in before.running.items() if pid not in after.running)
    reaped = max(0.0, after.reaped - before.reaped - ended)
    return after.main - before.main, running + reaped


def wait_until_idle(limit: float = 5.0) -> bool:
    """Waits until this process and its descendants are idle, at most ``limit`` seconds.

    Some loaders continue prefetching after an epoch, which would slow the next contender down.
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


def read_memory(pid: int) -> ProcessMemory | None:
    """Returns the memory of a process, ``None`` if it has ended or may not be read."""
    try:
        rollup = _kilobytes(Path("/proc", str(pid), "smaps_rollup").read_text())
        status = _kilobytes(Path("/proc", str(pid), "status").read_text())
    except OSError:
        return None
    return ProcessMemory(
        pid,
        uss=rollup.get("Private_Clean", 0) + rollup.get("Private_Dirty", 0),
        pss=rollup.get("Pss", 0),
        rss=rollup.get("Rss", 0),
        peak_rss=status.get("VmHWM", 0),
    )


def _kilobytes(text: str) -> dict[str, int]:
    """Returns the lines ``Name: 123 kB`` of a /proc file, in bytes."""
    values = {}
    for line in text.splitlines():
        parts = line.split()
        if len(parts) == 3 and parts[2] == "kB":
            values[parts[0].rstrip(":")] = int(parts[1]) * 1024
    return values


def read_workers(others: set[int]) -> list[ProcessMemory]:
    """Returns the memory of the descendants that are not in ``others`` (those there before)."""
    readings = (read_memory(pid) for pid in descendants() if pid not in others)
    return [reading for reading in readings if reading is not None]


def shared_memory_used() -> int:
    """Returns the bytes of shared memory in use on the machine, with and without names."""
    words = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(words["Shmem"].split()[0]) * 1024
