"""How long training waited in each step, and for whom.

A step is the time between two returns of ``next()`` of an iterator, and the wait is the part of it
within ``next()``, as ``FusionLoader.stats()`` counts them. The first batch of an epoch has no
return before it, and workers may only just start: it is counted apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fusionloader.cli.drawn_report.analysis.busy_time import Array
from fusionloader.observe.trace.timeline import Step


@dataclass(frozen=True, slots=True)
class TraceWaits:
    """Waits of training in all steps of a timeline, in their order; times in seconds.

    Attributes:
        steps: the timeline's steps.
        seconds: time waited in each step.
        for_workers: part of the wait in which workers had not yet finished the batch.
        training: time from the previous return of ``next()`` to this call; 0 for first batches.
        is_first: whether it is an epoch's first batch, as far as the trace has seen.
        knows_workers: whether the timeline says when workers had finished.
    """

    steps: tuple[Step, ...]
    seconds: Array
    for_workers: Array
    training: Array
    is_first: npt.NDArray[np.bool_]
    knows_workers: bool

    @property
    def counted(self) -> npt.NDArray[np.bool_]:
        """Which steps have a return of ``next()`` before them."""
        return ~self.is_first

    @property
    def waited_seconds(self) -> float:
        """Seconds that training waited in counted steps."""
        return float(self.seconds[self.counted].sum())

    @property
    def for_workers_seconds(self) -> float:
        """Seconds that it waited for workers in these steps."""
        return float(self.for_workers[self.counted].sum())

    @property
    def training_seconds(self) -> float:
        """Seconds between calls of ``next()`` in these steps."""
        return float(self.training.sum())

    @property
    def share(self) -> float | None:
        """Fraction of the time of all counted steps that training waited; ``None`` without any."""
        total = self.waited_seconds + self.training_seconds
        return self.waited_seconds / total if total else None

    @property
    def first_seconds(self) -> Array:
        """Seconds waited for the first batches of epochs."""
        return self.seconds[self.is_first]

    @property
    def startup_seconds(self) -> Array:
        """Seconds from ``iter(loader)`` to the first batches of epochs."""
        pairs = zip(self.steps, self.is_first, strict=True)
        return np.array([step.startup_ns for step, is_first in pairs if is_first]) / 1e9

    @property
    def samples(self) -> int:
        """Number of samples in the batches of counted steps."""
        pairs = zip(self.steps, self.counted, strict=True)
        return sum(step.samples for step, counted in pairs if counted)

    @property
    def training_rate(self) -> float | None:
        """Samples per second that training would take if it never waited."""
        known = self.samples and self.training_seconds
        return self.samples / self.training_seconds if known else None

    def percentile(self, percent: float) -> float | None:
        """Returns the seconds that so many percent of counted waits do not exceed."""
        counted = self.seconds[self.counted]
        return float(np.percentile(counted, percent)) if len(counted) else None

    def share_of_longest(self, part: float) -> float:
        """Returns how much of the counted wait fell into this part of the steps, the longest."""
        longest = np.sort(self.seconds[self.counted])[::-1]
        few = max(1, round(len(longest) * part))
        return float(longest[:few].sum() / longest.sum()) if longest.any() else 0.0


def waits_of(steps: Sequence[Step]) -> TraceWaits:
    """Returns the waits of a timeline's steps."""
    returned: dict[int, Step] = {}
    training = np.zeros(len(steps))
    is_first = np.zeros(len(steps), dtype=np.bool_)
    for number, step in enumerate(steps):
        last = returned.get(step.iterator)
        if last is None or last.epoch != step.epoch or last.batch >= step.batch:
            is_first[number] = True
        else:
            training[number] = (step.asked_ns - last.delivered_ns) / 1e9
        returned[step.iterator] = step
    return TraceWaits(
        tuple(steps),
        np.array([step.wait_ns for step in steps]) / 1e9,
        np.array([_for_workers_ns(step) for step in steps]) / 1e9,
        training,
        is_first,
        any(step.complete_ns is not None for step in steps),
    )


def _for_workers_ns(step: Step) -> int:
    if step.complete_ns is None:
        return 0
    return max(0, min(step.complete_ns, step.delivered_ns) - step.asked_ns)
