"""Counters over time, with as few points as a picture can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fusionloader.cli.drawn_report.analysis.busy_time import Array
from fusionloader.observe.trace.timeline import CounterValue, Timeline

MOST_POINTS = 240


@dataclass(frozen=True, slots=True)
class CounterCourse:
    """A counter's course.

    Attributes:
        name: name of the counter.
        moments: nanoseconds of ``CLOCK_MONOTONIC``; each value holds from there on.
        values: means until the next moment, where there were too many to show.
        least: least value.
        most: largest value.
        last: last value.
        is_mean: whether values are means.
    """

    name: str
    moments: Array
    values: Array
    least: int
    most: int
    last: int
    is_mean: bool


def counters_of(timeline: Timeline, end_ns: int) -> tuple[CounterCourse, ...]:
    """Returns the counters that the timeline has, in order of their first values."""
    by_name: dict[str, list[CounterValue]] = {}
    for each in timeline.counters:
        by_name.setdefault(each.name, []).append(each)
    return tuple(_counter(name, values, end_ns) for name, values in by_name.items())


def _counter(name: str, seen: Sequence[CounterValue], end_ns: int) -> CounterCourse:
    whole = [each.value for each in seen]
    moments = np.array([each.at_ns for each in seen], dtype=np.float64)
    values = np.array(whole, dtype=np.float64)
    is_mean = len(seen) > MOST_POINTS
    if is_mean:
        moments, values = _means(moments, values, end_ns)
    return CounterCourse(name, moments, values, min(whole), max(whole), whole[-1], is_mean)


def _means(moments: Array, values: Array, end_ns: int) -> tuple[Array, Array]:
    """Returns the beginnings of even stretches of time, and the mean of each."""
    ends = np.append(moments[1:], max(end_ns, moments[-1] + 1))
    integral = np.concatenate(([0.0], np.cumsum(values * (ends - moments))))
    edges = np.linspace(moments[0], ends[-1], MOST_POINTS + 1)
    at_edges = np.interp(edges, np.append(moments, ends[-1]), integral)
    return edges[:-1], np.diff(at_edges) / np.diff(edges)
