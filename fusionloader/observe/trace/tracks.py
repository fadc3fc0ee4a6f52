"""A timeline as tracks of slices, which both formats draw: within a track no two overlap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from operator import attrgetter
from typing import Any

from fusionloader.observe.trace.timeline import Copy, Span, Step, Timeline

Args = Mapping[str, int | str]

SPAN, STEP, COPY = "tiny-batch", "step", "copy"
"""Kinds of the slices that a timeline is read from again; all others are for people."""

_TIMES = {Span: ("begin_ns", "end_ns"), Step: ("asked_ns", "delivered_ns")}


@dataclass(frozen=True, slots=True)
class Slice:
    """From ``begin_ns`` to ``end_ns``; ``children`` lie within, one behind the other."""

    name: str
    kind: str
    begin_ns: int
    end_ns: int
    args: Args
    children: tuple[Slice, ...] = ()


@dataclass(frozen=True, slots=True)
class Track:
    """Slices of which each begins when the one before it has ended, or later."""

    name: str
    slices: tuple[Slice, ...]


def tracks(timeline: Timeline) -> list[Track]:
    """Returns training first, then copies, then the workers."""
    found = [*_lanes("training", _training(timeline.steps))]
    found += _lanes("copies to the device", map(_copy, timeline.copies))
    for worker in timeline.meta.workers:
        mine = (span for span in timeline.spans if span.worker == worker.number)
        found += _lanes(worker.name, map(_span, mine)) or [Track(worker.name, ())]
    return found


def _lanes(name: str, slices: Iterable[Slice]) -> list[Track]:
    """Divides slices among as few tracks as there have to be for none to overlap another.

    Usually that is one. There are more where several iterators of a loader are under way, or where
    the workers of one that was given up finish what they were at.
    """
    lanes: list[list[Slice]] = []
    for each in sorted(slices, key=attrgetter("begin_ns", "end_ns")):
        free = next((lane for lane in lanes if lane[-1].end_ns <= each.begin_ns), None)
        if free is None:
            lanes.append([each])
        else:
            free.append(each)
    names = (name if n == 0 else f"{name} ({n + 1})" for n in range(len(lanes)))
    return [Track(named, tuple(lane)) for named, lane in zip(names, lanes, strict=True)]


# ---- slices ------------------------------------------------------------------------------------


def _training(steps: Iterable[Step]) -> Iterator[Slice]:
    """Yields a slice for each ``iter()`` and ``next()``, and what lies between those."""
    of_iterator: dict[int, list[Step]] = {}
    for step in steps:
        of_iterator.setdefault(step.iterator, []).append(step)
        if step.began_ns is not None:
            yield Slice("iter()", "iter", step.began_ns, step.asked_ns, {})
        yield _step(step)
    for those in of_iterator.values():
        for before, after in pairwise(those):
            name = "training" if before.epoch == after.epoch else "between epochs"
            end = after.asked_ns if after.began_ns is None else after.began_ns
            if end > before.delivered_ns:
                yield Slice(name, name, before.delivered_ns, end, {})


def _step(step: Step) -> Slice:
    args = _args(step)
    complete = step.complete_ns
    if complete is None:
        parts: list[tuple[str, int]] = []
    else:
        waited = min(max(complete - step.asked_ns, 0), step.wait_ns)
        parts = [("wait for workers", waited), ("deliver", step.wait_ns - waited)]
    children = _in_line(step.asked_ns, step.delivered_ns, parts)
    return Slice("next()", STEP, step.asked_ns, step.delivered_ns, args, children)


def _span(span: Span) -> Slice:
    last = span.first + span.count - 1
    name = f"tiny-batch {span.first}" if span.count == 1 else f"tiny-batches {span.first}-{last}"
    children = _in_line(span.begin_ns, span.end_ns, span.parts.items())
    return Slice(
        f"batch {span.batch}, {name}", SPAN, span.begin_ns, span.end_ns, _args(span), children
    )


def _copy(copy: Copy) -> Slice:
    return Slice(f"batch {copy.batch}", COPY, copy.begin_ns, copy.end_ns, _args(copy))


def _in_line(begin: int, end: int, parts: Iterable[tuple[str, int]]) -> tuple[Slice, ...]:
    """Returns parts as slices one behind the other; what would reach beyond ``end`` ends there."""
    made = []
    for name, nanoseconds in parts:
        stop = min(begin + nanoseconds, end)
        if stop > begin:
            made.append(Slice(name, "part", begin, stop, {}))
        begin = stop
    return tuple(made)


# ---- there and back ----------------------------------------------------------------------------


def _args(value: Span | Step | Copy) -> Args:
    """Returns what a value holds beside the times of its slice."""
    left_out = _TIMES.get(type(value), ("begin_ns", "end_ns"))
    held = {field.name: getattr(value, field.name) for field in fields(value)}
    return {name: what for name, what in held.items() if name not in left_out and what is not None}


def rebuilt(kind: str, args: Mapping[str, Any], begin_ns: int, end_ns: int) -> Span | Step | Copy:
    """Returns the value that a slice of the kinds above was made of.

    Raises:
        KeyError: ``args`` are not those of such a slice, or the kind is another.
    """
    of_kind: dict[str, type[Span | Step | Copy]] = {SPAN: Span, STEP: Step, COPY: Copy}
    cls = of_kind[kind]
    begin, end = _TIMES.get(cls, ("begin_ns", "end_ns"))
    values = {begin: begin_ns, end: end_ns, **args}
    if cls is Step:
        values = {"complete_ns": None, "began_ns": None, **values}
    return cls(**{field.name: values[field.name] for field in fields(cls)})
