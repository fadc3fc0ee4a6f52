"""The moments worth a closer look, with all that happened in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fusionloader.report.analysis.waits import Waits
from fusionloader.report.analysis.words import duration
from fusionloader.report.analysis.work import extent
from fusionloader.trace.timeline import Copy, Span, Step, Timeline

_LONGEST = 4
_STEPS_BEFORE = 3  # of a median step's time
MOST_SPANS = 500


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a timeline.

    Attributes:
        title: why it is looked at.
        begin_ns: of what is shown; things that reach over the bounds are in it, too.
        end_ns: the same.
        spans: of workers.
        steps: of training.
        copies: to the device.
    """

    title: str
    begin_ns: int
    end_ns: int
    spans: tuple[Span, ...]
    steps: tuple[Step, ...]
    copies: tuple[Copy, ...]


def windows_of(timeline: Timeline, waits: Waits) -> tuple[Window, ...]:
    """Returns the longest waits, a usual step and the beginning, without overlaps."""
    windows: list[Window] = []
    earliest, latest = extent(timeline)
    for title, begin, end in _moments(waits):
        begin, end = max(begin, earliest), min(end, latest)
        if all(end <= seen.begin_ns or seen.end_ns <= begin for seen in windows):
            windows.append(_window(timeline, title, begin, end))
    return tuple(windows)


def _moments(waits: Waits) -> Iterator[tuple[str, int, int]]:
    """Yields why, and from when to when to look, what matters most first."""
    counted = np.flatnonzero(waits.counted)
    times = waits.seconds[counted] + waits.training[counted]
    margin = int(np.median(times) * _STEPS_BEFORE * 1e9) if len(counted) else 0
    by_wait = counted[np.argsort(-waits.seconds[counted], kind="stable")]
    chosen = [(f"long wait: {_name(waits, n)}", n) for n in by_wait[:_LONGEST].tolist()]
    if len(by_wait):
        middle = int(by_wait[len(by_wait) // 2])
        chosen.append((f"a usual step: {_name(waits, middle)}", middle))
    chosen.append((f"the beginning: {_name(waits, 0)}", 0))
    for title, number in chosen:
        step = waits.steps[number]
        yield title, step.asked_ns - margin, step.delivered_ns + margin


def _name(waits: Waits, number: int) -> str:
    step, waited = waits.steps[number], duration(float(waits.seconds[number]))
    return f"epoch {step.epoch}, batch {step.batch}, waited {waited}"


def _window(timeline: Timeline, title: str, begin: int, end: int) -> Window:
    spans = [s for s in timeline.spans if s.begin_ns < end and begin < s.end_ns]
    if len(spans) > MOST_SPANS:  # what led to the wait is at its end
        spans = sorted(spans, key=lambda span: span.end_ns)[-MOST_SPANS:]
        begin = max(begin, min(span.end_ns for span in spans))
    return Window(
        title,
        begin,
        end,
        tuple(spans),
        tuple(s for s in timeline.steps if s.asked_ns < end and begin < s.delivered_ns),
        tuple(c for c in timeline.copies if c.begin_ns < end and begin < c.end_ns),
    )
