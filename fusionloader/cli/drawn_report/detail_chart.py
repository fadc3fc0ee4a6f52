"""Some moments of a timeline as they were: each wait, each copy and each tiny-batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from fusionloader.cli.drawn_report.analysis.waits import TraceWaits
from fusionloader.cli.drawn_report.analysis.windows import TraceWindow, windows_of
from fusionloader.cli.drawn_report.analysis.words import duration, size
from fusionloader.cli.drawn_report.analysis.work import Work
from fusionloader.cli.drawn_report.chart import (
    SECONDS,
    Chart,
    Choice,
    Columns,
    Spec,
    colors,
    nominal,
    numeric,
    rows_height,
    spec,
    tip,
)
from fusionloader.observe.trace.timeline import Span, Timeline
from fusionloader.system.amounts import counted

_BATCH_COLORS = 5
_TRAINING, _COPY, _WAITING = "training", "copy", "waiting"


def detail_chart(timeline: Timeline, waits: TraceWaits, work: Work) -> Chart:
    """Returns single tiny-batches of all workers, around a moment that a reader chooses."""
    names = {each.worker.number: each.worker.name for each in work.workers}
    choices = tuple(
        Choice(window.title, {"rows": _detail_rows(window, names, work.begin_ns)})
        for window in windows_of(timeline, waits)
    )
    rows = [_TRAINING, *([_COPY] if timeline.copies else []), *names.values()]
    label = "Single tiny-batches of each worker around a moment; colors tell mini-batches apart."
    return Chart("detail-chart", label, _detail_spec(rows), choices)


class _Slice(NamedTuple):
    row: str
    begin_ns: int
    end_ns: int
    color: str
    batch: str
    what: str


def _detail_rows(window: TraceWindow, names: Mapping[int, str], origin_ns: int) -> Columns:
    slices = [*_of_training(window), *_of_copies(window), *_of_workers(window, names)]
    begins = [max(each.begin_ns, window.begin_ns) - origin_ns for each in slices]
    ends = [min(each.end_ns, window.end_ns) - origin_ns for each in slices]
    return {
        "name": [each.row for each in slices],
        "from": [round(begin / 1e9, 6) for begin in begins],
        "to": [round(end / 1e9, 6) for end in ends],
        "color": [each.color for each in slices],
        "batch": [each.batch for each in slices],
        "what": [each.what for each in slices],
    }


def _of_training(window: TraceWindow) -> Iterator[_Slice]:
    """Yields waits, and what is between two of them: training."""
    left: dict[int, int] = {}
    for step in window.steps:
        batch = f"{step.epoch}:{step.batch}"
        begin = left.get(step.iterator, window.begin_ns)
        if begin < step.asked_ns:
            between = duration((step.asked_ns - begin) / 1e9)
            yield _Slice(_TRAINING, begin, step.asked_ns, _TRAINING, batch, between)
        wait = f"waits {duration(step.wait_ns / 1e9)}"
        yield _Slice(_TRAINING, step.asked_ns, step.delivered_ns, _WAITING, batch, wait)
        left[step.iterator] = step.delivered_ns


def _of_copies(window: TraceWindow) -> Iterator[_Slice]:
    for copy in window.copies:
        batch = f"{copy.epoch}:{copy.batch}"
        yield _Slice(_COPY, copy.begin_ns, copy.end_ns, _COPY, batch, size(copy.nbytes))


def _of_workers(window: TraceWindow, names: Mapping[int, str]) -> Iterator[_Slice]:
    for span in window.spans:
        color = f"batch {span.batch % _BATCH_COLORS}"
        batch = f"{span.epoch}:{span.batch}"
        yield _Slice(
            names[span.worker], span.begin_ns, span.end_ns, color, batch, _what_was_done(span)
        )


def _what_was_done(span: Span) -> str:
    parts = [f"{name} {duration(ns / 1e9)}" for name, ns in span.parts.items() if ns]
    read = [size(span.nbytes)] if span.nbytes else []
    samples, took = counted(span.samples, "sample"), duration(span.duration_ns / 1e9)
    return ", ".join([samples, *read, took, *parts])


def _detail_spec(rows: Sequence[str]) -> Spec:
    scheme = {_TRAINING: "@training", _WAITING: "@waiting", _COPY: "@delivery"}
    marked = [name for name in scheme if name != _COPY or _COPY in rows]
    scheme |= {f"batch {n}": f"@batch-{n}" for n in range(_BATCH_COLORS)}
    slices: Spec = {
        "mark": {
            "type": "rect",
            "height": {"band": 0.86},
            "stroke": "@surface",
            "strokeWidth": 0.5,
        },
        "encoding": {
            "x": numeric("from", SECONDS, scale={"zero": False, "nice": False}),
            "x2": {"field": "to"},
            "y": {**nominal("name", axis={"ticks": False, "domain": False}), "sort": list(rows)},
            "color": colors("color", scheme, orient="top", values=marked),
            "tooltip": [
                tip("name", "who"),
                tip("batch", "epoch:batch"),
                tip("from", "from, s", ".6~r"),
                tip("what", "what"),
            ],
        },
    }
    return spec(rows_height(len(rows)), slices)
