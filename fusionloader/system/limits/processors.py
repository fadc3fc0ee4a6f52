"""What the kernel counts of this machine's processors: use, waits for a core, throttling."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from fusionloader.system.limits.control_groups import throttling_files

_PRESSURE = "/proc/pressure/cpu"


@dataclass(frozen=True, slots=True)
class ProcessorCounts:
    """Counts at one moment; what matters is the difference between two.

    Attributes:
        seconds: ``time.monotonic()``.
        process_seconds: processor time of this process.
        thread: native id of the thread that called ``now``.
        delay_seconds: time that this thread was ready to run while others had the cores; 0 where
            the kernel does not count it.
        pressure_seconds: time in which some process of the machine waited for a core; ``None``
            where the kernel does not count it.
        periods: of each control group with a CPU quota, the periods of its quota and those in which
            it was throttled.
    """

    seconds: float
    process_seconds: float
    thread: int
    delay_seconds: float
    pressure_seconds: float | None
    periods: tuple[tuple[int, int], ...]

    @classmethod
    def now(cls, thread: int | None = None) -> ProcessorCounts:
        """Returns the counts now, which takes 10 us.

        Args:
            thread: native id of the thread to look at; the calling one by default.
        """
        thread = threading.get_native_id() if thread is None else thread
        return cls(
            time.monotonic(),
            time.process_time(),
            thread,
            _delay_seconds(thread),
            _pressure_seconds(),
            tuple(_periods(file) for file in _files_of_quotas()),
        )


def recent_pressure() -> float | None:
    """Returns the share of the last 10 s in which some process of the machine waited for a core.

    ``None`` where the kernel does not count it.
    """
    words = dict(word.split("=", 1) for word in _read(_PRESSURE).split("\n")[0].split()[1:])
    return float(words["avg10"]) / 100 if "avg10" in words else None


def throttled_share() -> float | None:
    """Returns the share of the periods of CPU quotas that were exhausted; ``None`` without one.

    Since the control groups were made.
    """
    periods = [_periods(file) for file in _files_of_quotas()]
    return max((stopped / every for every, stopped in periods if every), default=None)


def cores_allowed() -> int:
    """Returns the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS, Windows


def _read(file: str | Path) -> str:
    """Returns the beginning of a file; empty if it cannot be read."""
    with contextlib.suppress(OSError):
        fd = os.open(file, os.O_RDONLY)
        try:
            return os.read(fd, 4096).decode()
        finally:
            os.close(fd)
    return ""


def _delay_seconds(thread: int) -> float:
    numbers = _read(f"/proc/self/task/{thread}/schedstat").split()
    return int(numbers[1]) / 1e9 if len(numbers) == 3 else 0.0


def _pressure_seconds() -> float | None:
    some, _, total = _read(_PRESSURE).partition("\n")[0].rpartition(" total=")
    return int(total) / 1e6 if some.startswith("some ") else None


@functools.cache  # finding them takes ten times as long as reading them
def _files_of_quotas() -> tuple[Path, ...]:
    return tuple(throttling_files())


def _periods(file: Path) -> tuple[int, int]:
    words = dict(line.split(" ", 1) for line in _read(file).splitlines() if " " in line)
    return int(words.get("nr_periods", 0)), int(words.get("nr_throttled", 0))
