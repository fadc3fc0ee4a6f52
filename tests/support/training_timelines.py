"""Timelines by hand: a few steps, each with what training and workers did in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fusionloader.observe.trace.timeline import Meta, Span, Step, Timeline, Worker

MS = 1_000_000
START = 1_000_000 * MS
BATCH = 8


def meta(**changes: Any) -> Meta:
    """Of two CPU workers and a second."""
    workers = (Worker(0, "cpu"), Worker(1, "cpu"))
    return replace(Meta(1, 0, BATCH, 4, START, START + 1000 * MS, 0, workers), **changes)


def steps_of(
    waits: Sequence[tuple[float, float | None]], training: float = 10, epoch: int = 0
) -> tuple[Step, ...]:
    """Steps of an epoch, one for each (wait, wait until workers had finished), in ms."""
    now, made = START, []
    for batch, (wait, for_workers) in enumerate(waits):
        asked = now + int(training * MS)
        complete = None if for_workers is None else asked + int(for_workers * MS)
        now = asked + int(wait * MS)
        made.append(Step(0, epoch, batch, BATCH, asked, complete, now))
    return tuple(made)


def span(worker: int, begin: float, end: float, nbytes: int = 0, **parts: float) -> Span:
    """A tiny-batch of four samples; times in ms since the start."""
    bounds = (START + int(begin * MS), START + int(end * MS))
    nanoseconds = {f"{name}_ns": int(value * MS) for name, value in parts.items()}
    return Span(worker, 100 + worker, 0, 0, 0, 0, 1, 4, nbytes, *bounds, **nanoseconds)


def timeline(steps: Sequence[Step] = (), spans: Sequence[Span] = (), **changes: Any) -> Timeline:
    """In order; ``changes`` are those of its ``Meta``."""
    return Timeline.in_order(meta(**changes), spans, steps, (), (), ())
