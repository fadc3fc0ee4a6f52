"""Timelines as Chrome's JSON trace events, by the clock of ``torch.profiler``.

``torch.profiler`` (since torch 2.4) writes ``ts`` in microseconds since ``baseTimeNanoseconds`` of
Unix time, a multiple of about three months. Here it is the same multiple, so the events of both
lie right side by side in one list.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from decimal import Decimal
from typing import Any

from fusionloader.observe.statistics.processor_use import ProcessorUse
from fusionloader.observe.trace.errors import TraceError
from fusionloader.observe.trace.timeline import CounterValue, Instant, Meta, Timeline, Worker
from fusionloader.observe.trace.tracks import COPY, SPAN, STEP, Slice, rebuilt, tracks

Event = dict[str, Any]

_BASE_STEP_NS = 7_889_238 * 10**9
META = "fusionloader"
"""Under which the file says what its timeline is of."""
# Processes are told apart by numbers that none has: those of torch's trace keep their own tracks.
_FIRST_PID = 1 << 24
_INSTANTS, _COUNTERS = "instant", "counter"


def dumped(timeline: Timeline) -> bytes:
    """Returns the file's contents."""
    base = (timeline.meta.begin_ns + timeline.meta.unix_ns) // _BASE_STEP_NS * _BASE_STEP_NS
    contents = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base,
        META: asdict(timeline.meta),
        "traceEvents": list(_events(timeline, timeline.meta.unix_ns - base)),
    }
    return json.dumps(contents, separators=(",", ":")).encode()


def _events(timeline: Timeline, offset: int) -> Iterator[Event]:
    pid = _FIRST_PID + timeline.meta.pid

    def about(what: str, tid: int, **args: object) -> Event:
        return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}

    yield about("process_name", 0, name=f"FusionLoader of process {timeline.meta.pid}")
    yield about("process_sort_index", 0, sort_index=0)
    for tid, track in enumerate(tracks(timeline), 1):
        yield about("thread_name", tid, name=track.name)
        yield about("thread_sort_index", tid, sort_index=tid)
        for each in track.slices:
            yield from _slice_events(each, pid, tid, offset)
    for instant in timeline.instants:
        args = {key: what for key, what in asdict(instant).items() if what is not None}
        yield _event("i", instant.text, _INSTANTS, instant.at_ns + offset, pid, 1) | {
            "s": "p",
            "args": args,
        }
    for counter in timeline.counters:
        yield _event("C", counter.name, _COUNTERS, counter.at_ns + offset, pid, 0) | {
            "args": {"value": counter.value}
        }


def _slice_events(each: Slice, pid: int, tid: int, offset: int) -> Iterator[Event]:
    event = _event("X", each.name, each.kind, each.begin_ns + offset, pid, tid)
    event["dur"] = (each.end_ns - each.begin_ns) / 1000
    if each.args:
        event["args"] = dict(each.args)
    yield event
    for child in each.children:
        yield from _slice_events(child, pid, tid, offset)


def _event(phase: str, name: str, kind: str, ns: int, pid: int, tid: int) -> Event:
    return {"ph": phase, "name": name, "cat": kind, "pid": pid, "tid": tid, "ts": ns / 1000}


def nanoseconds(microseconds: float) -> int:
    """Returns a time of an event, which has three decimals, without the error of a product."""
    return int((Decimal(repr(microseconds)) * 1000).to_integral_value())


# ---- reading -----------------------------------------------------------------------------------


def parsed(contents: bytes) -> dict[str, Any]:
    """Returns a file of trace events, ours or another's.

    Raises:
        TraceError: it is cut off, or none.
    """
    try:
        found = json.loads(contents)
    except ValueError as error:
        raise TraceError(f"is cut off, or no JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
        raise TraceError('holds JSON, but no trace events: it has no list "traceEvents"')
    return found


def loaded(contents: bytes) -> Timeline:
    """Returns the timeline of a file, also of one that was merged with a ``torch.profiler`` trace.

    Raises:
        TraceError: it is cut off, or no trace of a loader.
    """
    found = parsed(contents)
    if META not in found:
        raise TraceError(
            "holds trace events, but none of a loader: FusionLoader.trace() writes those"
        )
    try:
        meta = meta_of(found[META])
        return _timeline(meta, found["traceEvents"], found["baseTimeNanoseconds"] - meta.unix_ns)
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"is damaged: {error!r}") from None


def meta_of(found: Mapping[str, Any]) -> Meta:
    """Returns what ``dataclasses.asdict`` made a dictionary of."""
    workers = tuple(Worker(**worker) for worker in found["workers"])
    use = found.get("processors")
    processors = None if use is None else ProcessorUse(**use)
    made = {"workers": workers, "notes": tuple(found["notes"]), "processors": processors}
    return Meta(**{**found, **made})


def _timeline(meta: Meta, events: list[Event], offset: int) -> Timeline:
    values: dict[str, list[Any]] = {SPAN: [], STEP: [], COPY: [], _INSTANTS: [], _COUNTERS: []}
    for event in events:
        kind = event.get("cat")
        if kind not in values or event["pid"] < _FIRST_PID:
            continue
        at = nanoseconds(event["ts"]) + offset
        if kind == _INSTANTS:
            values[kind].append(Instant(**{**event["args"], "at_ns": at}))
        elif kind == _COUNTERS:
            values[kind].append(CounterValue(at, event["name"], event["args"]["value"]))
        else:
            end = at + nanoseconds(event["dur"])
            values[kind].append(rebuilt(kind, event["args"], at, end))
    return Timeline.in_order(meta, *values.values())
