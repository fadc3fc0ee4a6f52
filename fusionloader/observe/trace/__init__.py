"""Timelines of a loader: what workers and training did when, recorded, written and read again."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusionloader.observe.trace.errors import TraceError as TraceError
    from fusionloader.observe.trace.files import read_timeline as read_timeline
    from fusionloader.observe.trace.files import write_timeline as write_timeline
    from fusionloader.observe.trace.merge import merge_traces as merge_traces
    from fusionloader.observe.trace.recording import Trace as Trace
    from fusionloader.observe.trace.timeline import Timeline as Timeline

__all__ = ["Timeline", "Trace", "TraceError", "merge_traces", "read_timeline", "write_timeline"]
_MODULES = {
    "Timeline": "timeline",
    "Trace": "recording",
    "TraceError": "errors",
    "merge_traces": "merge",
    "read_timeline": "files",
    "write_timeline": "files",
}


if not TYPE_CHECKING:  # to checkers every name would be there

    def __getattr__(name: str) -> object:
        # Each loader imports modules of this room, and hardly any of them takes a trace.
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
