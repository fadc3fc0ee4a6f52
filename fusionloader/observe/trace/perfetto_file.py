"""Timelines as Perfetto's TrackEvents, through the protocol buffers of the package ``perfetto``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from fusionloader.observe.trace.chrome_file import meta_of
from fusionloader.observe.trace.errors import TraceError
from fusionloader.observe.trace.timeline import CounterValue, Instant, Timeline
from fusionloader.observe.trace.tracks import COPY, SPAN, STEP, Args, Slice, rebuilt, tracks

_SEQUENCE = 1
_MONOTONIC, _REALTIME = 3, 1  # of perfetto.protos.BuiltinClock
_NAME = "FusionLoader"
_META, _INSTANT = "trace", "instant"


def protos() -> Any:
    """Returns the module of messages.

    Raises:
        ImportError: ``perfetto`` is not installed.
    """
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
    except ImportError as error:
        raise ImportError(
            "Perfetto's format needs the packages perfetto and protobuf: pip install "
            "'fusionloader[trace]'; a path that ends in .json or .json.gz needs neither"
        ) from error
    return perfetto_trace_pb2


# ---- writing -----------------------------------------------------------------------------------


def dumped(timeline: Timeline) -> bytes:
    """Returns the file's contents."""
    return bytes(_Writer(timeline).trace.SerializeToString())


class _Writer:
    """Adds packets to a trace; numbers of tracks count up from 1, that of the process."""

    def __init__(self, timeline: Timeline) -> None:
        self._protos = protos()
        self._event = self._protos.TrackEvent
        self.trace = self._protos.Trace()
        meta = timeline.meta
        self._clocks(meta.begin_ns, meta.unix_ns)
        self._tracks = 0
        process = self._track()
        process.process.pid = meta.pid
        process.process.process_name = _NAME
        process.child_ordering = self._protos.TrackDescriptor.EXPLICIT
        for track in tracks(timeline):
            descriptor = self._track(track.name)
            for each in track.slices:
                self._slice(each, descriptor.uuid)
        for instant in timeline.instants:
            self._instant(instant)
        self._counters(timeline)
        # Last, so that a file without it is known to be cut off.
        end = self._at(meta.end_ns, self._event.TYPE_INSTANT, 1)
        end.name, _ = _META, end.categories.append(_META)
        self._annotate(end, {"meta": json.dumps(asdict(meta))})

    def _clocks(self, monotonic_ns: int, unix_ns: int) -> None:
        snapshot = self._packet().clock_snapshot
        snapshot.primary_trace_clock = _MONOTONIC
        snapshot.clocks.add(clock_id=_MONOTONIC, timestamp=monotonic_ns)
        snapshot.clocks.add(clock_id=_REALTIME, timestamp=monotonic_ns + unix_ns)

    def _packet(self) -> Any:
        return self.trace.packet.add(trusted_packet_sequence_id=_SEQUENCE)

    def _track(self, name: str = "") -> Any:
        self._tracks += 1
        descriptor = self._packet().track_descriptor
        descriptor.uuid = self._tracks
        if name:
            descriptor.name, descriptor.parent_uuid = name, 1
            descriptor.sibling_order_rank = self._tracks
        return descriptor

    def _at(self, ns: int, kind: int, track: int) -> Any:
        packet = self._packet()
        packet.timestamp, packet.timestamp_clock_id = ns, _MONOTONIC
        packet.track_event.type, packet.track_event.track_uuid = kind, track
        return packet.track_event

    def _annotate(self, event: Any, args: Args) -> None:
        for name, value in args.items():
            if isinstance(value, str):
                event.debug_annotations.add(name=name, string_value=value)
            else:
                event.debug_annotations.add(name=name, int_value=value)

    def _slice(self, each: Slice, track: int) -> None:
        begin = self._at(each.begin_ns, self._event.TYPE_SLICE_BEGIN, track)
        begin.name = each.name
        begin.categories.append(each.kind)
        self._annotate(begin, each.args)
        for child in each.children:
            self._slice(child, track)
        self._at(each.end_ns, self._event.TYPE_SLICE_END, track)

    def _instant(self, instant: Instant) -> None:
        event = self._at(instant.at_ns, self._event.TYPE_INSTANT, 1)
        event.name = instant.text
        event.categories.append(_INSTANT)
        self._annotate(event, {"kind": instant.kind})
        if instant.worker is not None:
            self._annotate(event, {"worker": instant.worker})

    def _counters(self, timeline: Timeline) -> None:
        of_name: dict[str, int] = {}
        for value in timeline.counters:
            if value.name not in of_name:
                descriptor = self._track(value.name)
                descriptor.counter.SetInParent()
                of_name[value.name] = descriptor.uuid
            track = of_name[value.name]
            event = self._at(value.at_ns, self._event.TYPE_COUNTER, track)
            event.counter_value = value.value


# ---- reading -----------------------------------------------------------------------------------


def loaded(contents: bytes) -> Timeline:
    """Returns the timeline of a file.

    Raises:
        TraceError: it is cut off, or no trace of a loader.
    """
    messages = protos()
    trace = messages.Trace()
    # Not at the top: it comes with perfetto.
    from google.protobuf.message import DecodeError

    try:
        trace.ParseFromString(contents)
    except DecodeError as error:
        raise TraceError(f"is cut off, or no Perfetto trace: {error}") from None
    names = {
        packet.track_descriptor.process.process_name
        for packet in trace.packet
        if packet.HasField("track_descriptor")
    }
    if _NAME not in names:
        raise TraceError(
            "is a Perfetto trace, but none of a loader: FusionLoader.trace() writes those"
        )
    try:
        return _Reader(messages, trace).timeline()
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise TraceError(f"is damaged: {error!r}") from None


class _Reader:
    """Collects the values of a trace's events."""

    def __init__(self, messages: Any, trace: Any) -> None:
        self._event = messages.TrackEvent
        self._packets = trace.packet
        self._names: dict[int, str] = {}  # of counters
        self._open: dict[int, list[tuple[str, int, Any]]] = {}  # slices, by track
        self._slices: dict[str, list[Any]] = {SPAN: [], STEP: [], COPY: []}
        self._instants: list[Instant] = []
        self._counters: list[CounterValue] = []
        self._meta: str | None = None

    def timeline(self) -> Timeline:
        for packet in self._packets:
            if packet.HasField("track_descriptor"):
                descriptor = packet.track_descriptor
                if descriptor.HasField("counter"):
                    self._names[descriptor.uuid] = descriptor.name
            elif packet.HasField("track_event"):
                self._note(packet.track_event, packet.timestamp)
        if self._meta is None:
            raise TraceError("is cut off: its end is missing")
        meta = meta_of(json.loads(self._meta))
        spans, steps, copies = self._slices.values()
        return Timeline.in_order(meta, spans, steps, copies, self._instants, self._counters)

    def _note(self, event: Any, ns: int) -> None:
        if event.type == self._event.TYPE_SLICE_BEGIN:
            kind = event.categories[0]
            self._open.setdefault(event.track_uuid, []).append((kind, ns, event))
        elif event.type == self._event.TYPE_SLICE_END:
            kind, begin, opened = self._open[event.track_uuid].pop()
            if kind in self._slices:
                self._slices[kind].append(rebuilt(kind, dict(_args(opened)), begin, ns))
        elif event.type == self._event.TYPE_COUNTER:
            self._counters.append(
                CounterValue(ns, self._names[event.track_uuid], event.counter_value)
            )
        elif event.name == _META:
            self._meta = dict(_args(event))["meta"]
        else:
            self._instants.append(Instant(at_ns=ns, text=event.name, **dict(_args(event))))


def _args(event: Any) -> Iterator[tuple[str, Any]]:
    for annotation in event.debug_annotations:
        yield annotation.name, getattr(annotation, annotation.WhichOneof("value"))
