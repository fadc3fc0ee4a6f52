"""The moments worth a closer look, with all that happened in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fusionloader.cli.drawn_report.analysis.waits import TraceWaits
from fusionloader.cli.drawn_report.analysis.words import duration
from fusionloader.cli.drawn_report.analysis.work import extent
from fusionloader.observe.trace.timeline import Copy, Span, Step, Timeline

_LONGEST = 4
_STEPS_AROUND = 3  # of a median step's time
MOST_SPANS = 500


@dataclass(frozen=True, slots=True)
class TraceWindow:
    """A stretch of a timeline.

    Attributes:
        title: why it is looked at.
        begin_ns: begin of the window; what reaches over its bounds is in it, too.
        end_ns: the same.
        spans: spans of workers.
        steps: steps of training.
        copies: copies to the device.
    """

    title: str
    begin_ns: int
    end_ns: int
    spans: tuple[Span, ...]
    steps: tuple[Step, ...]
    copies: tuple[Copy, ...]


def windows_of(timeline: Timeline, waits: TraceWaits) -> tuple[TraceWindow, ...]:
    """Returns the longest waits, a usual step and the beginning, without overlaps."""
    windows: list[TraceWindow] = []
    earliest, latest = extent(timeline)
    margin = _margin_ns(waits)
    for title, step in _worth_a_look(waits):
        begin = max(step.asked_ns - margin, earliest)
        end = min(step.delivered_ns + margin, latest)
        if all(end <= seen.begin_ns or seen.end_ns <= begin for seen in windows):
            windows.append(_window(timeline, title, step, begin, end))
    return tuple(windows)


def _margin_ns(waits: TraceWaits) -> int:
    times = (waits.seconds + waits.training)[waits.counted]
    return int(np.median(times) * _STEPS_AROUND * 1e9) if len(times) else 0


def _worth_a_look(waits: TraceWaits) -> Iterator[tuple[str, Step]]:
    """Yields steps and why to look at them, what matters most first."""
    counted = np.flatnonzero(waits.counted)
    by_wait = counted[np.argsort(-waits.seconds[counted], kind="stable")].tolist()
    chosen = [("long wait", number) for number in by_wait[:_LONGEST]]
    chosen += [("a usual step", number) for number in by_wait[len(by_wait) // 2 :][:1]]
    for why, number in [*chosen, ("the beginning", 0)]:
        yield f"{why}: {_name(waits, number)}", waits.steps[number]


def _name(waits: TraceWaits, number: int) -> str:
    step, waited = waits.steps[number], duration(float(waits.seconds[number]))
    return f"epoch {step.epoch}, batch {step.batch}, waited {waited}"


def _window(timeline: Timeline, title: str, step: Step, begin: int, end: int) -> TraceWindow:
    spans = [s for s in timeline.spans if s.begin_ns < end and begin < s.end_ns]
    if len(spans) > MOST_SPANS:  # those that are nearest to the end of the wait
        spans.sort(key=lambda span: abs(span.end_ns - step.delivered_ns))
        del spans[MOST_SPANS:]
        begin = max(begin, min(span.begin_ns for span in spans))
        end = min(end, max(span.end_ns for span in spans))
    return TraceWindow(
        title,
        begin,
        end,
        tuple(spans),
        tuple(s for s in timeline.steps if s.asked_ns < end and begin < s.delivered_ns),
        tuple(c for c in timeline.copies if c.begin_ns < end and begin < c.end_ns),
    )
