"""Measurements while other processes leave the cores alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fusionloader.cli.measure.processes import cpu_between, read_cpu

T = TypeVar("T")

ALLOWED = 0.15  # of a core, for other processes
_LOOK = 0.15  # seconds


class Quiet:
    """Repeats a measurement until other processes used little of the cores meanwhile.

    Args:
        patience: seconds, after which the machine is given up; 0 takes everything as it comes.
    """

    def __init__(self, patience: float) -> None:
        self._until = time.perf_counter() + patience
        self._asked = patience > 0
        self.repeated = 0

    def run(self, measure: Callable[[], T]) -> tuple[T, float]:
        """Returns what was measured, and the cores that others used meanwhile.

        Raises:
            TimeoutError: the machine was not quiet for long enough.
        """
        while True:
            self._wait()
            value, others = with_others(measure)
            if others <= ALLOWED or not self._asked:
                return value, others
            self.repeated += 1

    def _wait(self) -> None:
        while self._asked and with_others(lambda: time.sleep(_LOOK))[1] > ALLOWED:
            if time.perf_counter() > self._until:
                raise TimeoutError("other processes keep the machine busy")


def with_others(measure: Callable[[], T]) -> tuple[T, float]:
    """Returns what was measured, and the cores that other processes used meanwhile."""
    cpu, busy, started = read_cpu(), _busy(), time.perf_counter()
    value = measure()
    seconds = time.perf_counter() - started
    ours = sum(cpu_between(cpu, read_cpu()))
    return value, max(0.0, _busy() - busy - ours) / seconds


def _busy() -> float:
    """Returns the seconds that the machine's cores have been busy."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:3]) + sum(fields[5:8])) / 100
