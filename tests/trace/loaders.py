"""What tests of traces share: loaders that are traced, and what their timelines have to be."""

from __future__ import annotations

import json
from pathlib import Path

from perfetto.protos.perfetto.trace import perfetto_trace_pb2

from fusionloader.observe.trace.files import read_timeline


def traced(loader, path, epochs=1):
    """The timeline of whole epochs, from before they begin."""
    with loader.trace(path):
        for _ in range(epochs):
            for _ in loader:
                pass
    return read_timeline(path)


def assert_whole(timeline, samples, epochs=1):
    """Every sample is in one span of its epoch, and each step behind the spans of its batch."""
    assert timeline.meta.lost == 0
    assert sum(step.samples for step in timeline.steps) == samples * epochs
    done = {}
    for span in timeline.spans:
        assert span.begin_ns <= span.end_ns
        assert sum(span.parts.values()) <= span.duration_ns
        for tiny_batch in range(span.first, span.first + span.count):
            done.setdefault((span.iterator, span.epoch, span.batch), []).append(tiny_batch)
    assert sum(span.samples for span in timeline.spans) == samples * epochs
    for step in timeline.steps:
        here = done.pop((step.iterator, step.epoch, step.batch))
        assert sorted(here) == list(range(len(here)))
        assert step.complete_ns <= step.delivered_ns
    assert not done


def overlaps(slices):
    """Pairs of slices, ``(begin, end)`` in the order of a file, that overlap and do not nest."""
    wrong, around = [], []
    for begin, end in sorted(slices, key=lambda each: (each[0], -each[1])):
        while around and around[-1][1] <= begin:
            around.pop()
        if around and end > around[-1][1]:
            wrong.append((around[-1], (begin, end)))
        around.append((begin, end))
    return wrong


def chrome_tracks(path: Path):
    """The slices of each track of a JSON trace, in whole nanoseconds."""
    found = {}
    for event in json.loads(path.read_bytes())["traceEvents"]:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            end = begin + round(event.get("dur", 0) * 1000)
            found.setdefault((event["pid"], event["tid"]), []).append((begin, end))
    return found


def perfetto_tracks(path: Path):
    """The slices of each track of a Perfetto trace; each end belongs to the last begin."""
    trace = perfetto_trace_pb2.Trace.FromString(path.read_bytes())
    found, around = {}, {}
    for packet in trace.packet:
        event, track = packet.track_event, packet.track_event.track_uuid
        if event.type == event.TYPE_SLICE_BEGIN:
            around.setdefault(track, []).append(packet.timestamp)
        elif event.type == event.TYPE_SLICE_END:
            found.setdefault(track, []).append((around[track].pop(), packet.timestamp))
    assert not any(around.values())
    return found
