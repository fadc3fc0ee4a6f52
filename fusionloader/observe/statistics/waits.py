"""How long training waits in ``next()``, as a share of its time and as a distribution.

The time of a step is that between two returns of ``next()``; the wait is the part of it within
``next()``. The first batch of an epoch has no return before it, and its wait is that for workers
to start. It is counted apart, as is the time in ``iter()`` before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from fusionloader.observe.statistics.histogram import BOUNDS, COARSE, Histogram, quantiles
from fusionloader.observe.statistics.processor_use import ProcessorWatch

STEPS_PER_LINE = 100  # of the log of progress


class StepObserver(Protocol):
    """Is told of the steps of training."""

    def asked(self) -> None:
        """Training has entered ``next()``."""

    def delivered(self) -> None:
        """``next()`` is about to return, with a batch or without."""


@dataclass(frozen=True, slots=True)
class WaitStats:
    """How long training has waited in ``next()``.

    Attributes:
        steps: number of returns of ``next()``, without the first of each epoch.
        seconds: time waited in these steps, in seconds.
        step_seconds: duration of these steps, waits included.
        share: fraction of that time that was waited, 0 to 1; ``None`` before the second batch.
        p50: seconds that half of the waits do not exceed, within 5 %; ``None`` before the second
            batch, as are the others.
        p95: the same for 95 in 100.
        p99: the same for 99 in 100.
        first_seconds: time waited for first batches of epochs, in seconds.
        iter_seconds: time spent in ``iter(loader)``: start of workers, sampler, first tiny-batches.
        histogram: upper bounds in seconds, and how many waits lie below each but not below the
            one before; buckets without waits are left out.
    """

    steps: int
    seconds: float
    step_seconds: float
    share: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    first_seconds: float
    iter_seconds: float
    histogram: tuple[tuple[float, int], ...]

    @property
    def startup_seconds(self) -> float:
        """Time from ``iter(loader)`` to the first batch, of all epochs, in seconds."""
        return self.iter_seconds + self.first_seconds

    def cumulative(self) -> tuple[tuple[float, int], ...]:
        """Returns coarse buckets, always the same: a bound in seconds, and how many waits reach it.

        There are three for each power of ten, and infinity. The counts are exact.
        """
        bounds = (*BOUNDS[::COARSE], float("inf"))
        return tuple(
            (bound, sum(count for upper, count in self.histogram if upper <= bound))
            for bound in bounds
        )


class Waits:
    """Counts the waits of all iterators of a loader.

    Attributes:
        steps: number of steps so far.
        first_seconds: seconds waited for first batches of epochs.
        next_line: number of steps after which progress is logged again.
        processors: processor time that training and its workers get during epochs.
    """

    def __init__(self) -> None:
        self.processors = ProcessorWatch()
        self._histogram = Histogram()
        self._seconds = self._elsewhere = self._iter_seconds = 0.0
        self.first_seconds = 0.0
        self.steps = 0
        self.next_line = STEPS_PER_LINE

    def add_first(self, seconds: float) -> None:
        """Counts the wait for the first batch of an epoch."""
        self.first_seconds += seconds

    @contextmanager
    def entering_iter(self) -> Iterator[None]:
        """Counts the time of the block, which is that of ``iter(loader)``."""
        began = time.perf_counter()
        yield
        self._iter_seconds += time.perf_counter() - began

    def add(self, waited: float, elsewhere: float) -> None:
        """Counts a step: seconds within ``next()``, and those before it outside."""
        self._histogram.add(waited)
        self.steps += 1
        self._seconds += waited
        self._elsewhere += elsewhere

    def sums(self) -> tuple[int, float, float]:
        """Returns steps, the seconds that they took, and those of them that were waited."""
        return self.steps, self._seconds + self._elsewhere, self._seconds

    def stats(self) -> WaitStats:
        """Returns what was counted until now."""
        buckets = self._histogram.counts()  # other threads ask while training counts
        total = self._seconds + self._elsewhere
        p50, p95, p99 = quantiles(buckets, (0.5, 0.95, 0.99))
        bounds = (*BOUNDS, float("inf"))
        return WaitStats(
            steps=sum(buckets),
            seconds=self._seconds,
            step_seconds=total,
            share=self._seconds / total if total > 0 else None,
            p50=p50,
            p95=p95,
            p99=p99,
            first_seconds=self.first_seconds,
            iter_seconds=self._iter_seconds,
            histogram=tuple(pair for pair in zip(bounds, buckets, strict=True) if pair[1]),
        )


class WaitClock:
    """Measures the steps of one iterator; a context manager around each ``next()``."""

    def __init__(
        self, waits: Waits, observers: list[StepObserver], log_progress: Callable[[], None]
    ) -> None:
        """``observers`` may change while steps are measured.

        ``log_progress`` is called each ``STEPS_PER_LINE`` steps of the loader, before a batch is
        taken, so that none is lost if it raises.
        """
        self._waits, self._observers, self._log_progress = waits, observers, log_progress
        self._entered = 0.0
        self._left: float | None = None

    def begin_epoch(self) -> None:
        """What follows is the first batch of an epoch."""
        self._left = None
        self._waits.processors.epoch_began()

    def __enter__(self) -> None:
        if self._waits.steps >= self._waits.next_line:
            self._waits.next_line = self._waits.steps + STEPS_PER_LINE
            self._log_progress()
        self._entered = time.perf_counter()
        for observer in self._observers:
            observer.asked()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for observer in self._observers:
            observer.delivered()
        now = time.perf_counter()
        waited, left = now - self._entered, self._left
        self._left = None if kind is StopIteration else now
        if kind is StopIteration:
            self._waits.processors.epoch_ended()
        if kind is not None:
            return
        if left is None:
            self._waits.add_first(waited)
        else:
            self._waits.add(waited, self._entered - left)
