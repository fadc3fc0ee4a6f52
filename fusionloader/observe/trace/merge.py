"""Traces in Chrome's format put together by their clocks: loaders' and ``torch.profiler``'s."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fusionloader.observe.trace.chrome_file import META, Event, nanoseconds, parsed
from fusionloader.observe.trace.errors import TraceError
from fusionloader.observe.trace.files import unzipped

_GZIP = b"\x1f\x8b"
_BASE = "baseTimeNanoseconds"
_NEXT_PID = 1 << 24


def merge_traces(
    paths: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]
) -> dict[str, int]:
    """Writes one trace with the events of several, all on the same clock.

    What the first trace that is not a loader's says of itself is kept. Where two loaders of one
    process were traced, each keeps tracks of its own.

    Args:
        paths: paths of ``.json`` and ``.json.gz`` traces.
        output: packed by gzip where it ends in ``.gz``.

    Returns:
        How many events came from each file.

    Raises:
        TraceError: a file is empty, cut off, no such trace, or does not say its clock.
        OSError: a file cannot be read or written.
    """
    found = [_read(path) for path in paths]
    main = next((trace for trace in found if META not in trace), found[0])
    loaders = [trace[META] for trace in found if META in trace]
    merged = {key: value for key, value in main.items() if key != META}
    merged["traceEvents"] = list(_events(found, main[_BASE]))
    if len(loaders) == 1:  # of which it can be read as a timeline again
        merged[META] = loaders[0]
    contents = json.dumps(merged, separators=(",", ":")).encode()
    name = os.fspath(output)
    Path(name).write_bytes(gzip.compress(contents) if name.endswith(".gz") else contents)
    return {
        os.fspath(path): len(trace["traceEvents"]) for path, trace in zip(paths, found, strict=True)
    }


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    contents = Path(path).read_bytes()
    try:
        if not contents:
            raise TraceError("is empty: the process that recorded it is at it, or was killed")
        trace = parsed(unzipped(contents) if contents.startswith(_GZIP) else contents)
        if not isinstance(trace.get(_BASE), int):
            raise TraceError(
                f'does not say its clock: "{_BASE}" is missing, which torch writes since 2.4'
            )
    except (TraceError, UnicodeDecodeError) as error:
        raise TraceError(f"{os.fspath(path)} {error}") from None
    return trace


def _events(traces: Iterable[dict[str, Any]], base: int) -> Iterable[Event]:
    taken: set[object] = set()
    for trace in traces:
        shift = trace[_BASE] - base
        pids = {event["pid"] for event in trace["traceEvents"] if _is_ours(event)}
        moved = 0
        while META in trace and any(pid + moved in taken for pid in pids):
            moved += _NEXT_PID
        taken |= {pid + moved for pid in pids}
        for event in trace["traceEvents"]:
            yield _shifted(event, shift, moved)


def _shifted(event: Event, shift: int, moved: int) -> Event:
    changed = dict(event)
    if shift and "ts" in event and event.get("ph") != "M":
        changed["ts"] = (nanoseconds(event["ts"]) + shift) / 1000
    if _is_ours(event):
        changed["pid"] = event["pid"] + moved
    return changed


def _is_ours(event: Event) -> bool:
    """Whether an event is of a loader; torch's have pids of processes, or texts."""
    pid = event.get("pid")
    return isinstance(pid, int) and pid >= _NEXT_PID
