"""What workers did over time: all of it as shares, and some moments as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from fusionloader.report.analysis.activity import TRAINING, Activity, activity_of
from fusionloader.report.analysis.waits import Waits
from fusionloader.report.analysis.windows import Window, windows_of
from fusionloader.report.analysis.words import count, duration, number, percent, size
from fusionloader.report.analysis.work import Work
from fusionloader.report.chart import (
    SECONDS,
    Chart,
    Choice,
    Columns,
    Figure,
    Spec,
    Table,
    chart,
    colors,
    nominal,
    numeric,
    rounded,
    spec,
    tip,
)
from fusionloader.trace.timeline import Span, Timeline

_BATCH_COLORS = 5
_ROW, _FEW_ROWS = 15, 120  # pixels of a row, and of all rows at least
_MOST_EVENTS = 60
TRAINING_ROW, COPY_ROW, _WAITING = "training", "copy", "waiting"


def workers_figure(timeline: Timeline, waits: Waits, work: Work) -> Figure:
    """Returns the workers' timeline, whole and at moments that are worth a closer look."""
    title = "What did the workers do?"
    if not work.workers:
        why = timeline.meta.steps_only or "it has nothing that a worker did"
        return Figure("workers", title, f"No worker is seen in this trace: {why}.")
    activity = activity_of(work, timeline.steps)
    busy = [each.busy_share for each in work.workers]
    text = (
        f"{count(len(work.workers), 'worker')} were busy {percent(sum(busy) / len(busy))} of the "
        f"time, the least busy {percent(min(busy))}, the busiest {percent(max(busy))}. "
        "Above: shares of time, training's waits in the first row. Below: single tiny-batches "
        "around a moment; their colors tell mini-batches apart."
    )
    whole = chart(
        "workers-chart",
        f"Busy share of each worker over {number(work.seconds)} seconds.",
        _activity_spec(activity),
        rows=_activity_rows(activity),
        events=_event_rows(timeline, work),
    )
    charts: tuple[Chart, ...] = (whole,)
    if waits.steps:
        charts = (whole, _detail_chart(timeline, waits, work))
    return Figure("workers", title, text, charts, _worker_table(work))


def _activity_rows(activity: Activity) -> Columns:
    edges = activity.edges.tolist()
    begins, ends = rounded(edges[:-1], 6), rounded(edges[1:], 6)
    rows = activity.rows.items()
    return {
        "name": [name for name, _ in rows for _ in begins],
        "from": begins * len(rows),
        "to": ends * len(rows),
        "share": [share for _, shares in rows for share in rounded(shares, 2)],
    }


def _event_rows(timeline: Timeline, work: Work) -> Columns:
    # The threshold has a picture of its own.
    shown = [each for each in timeline.instants if each.kind != "threshold"][:_MOST_EVENTS]
    return {
        "at": rounded([(each.at_ns - work.begin_ns) / 1e9 for each in shown], 6),
        "text": [each.text for each in shown],
    }


def _activity_spec(activity: Activity) -> Spec:
    longest = float(activity.edges[-1])
    cells = {
        "x": numeric("from", SECONDS, scale={"domain": [0, longest], "nice": False}),
        "x2": {"field": "to"},
        "y": nominal("name", axis={"ticks": False, "domain": False}),
        "tooltip": [
            tip("name", "who"),
            tip("from", "from, s", ".4~r"),
            tip("to", "to, s", ".4~r"),
            tip("share", "share", ".0%"),
        ],
    }
    events = {
        "data": {"name": "events"},
        "mark": {"type": "rule", "strokeDash": [3, 3], "size": 1.5, "color": "@text"},
        "encoding": {"x": numeric("at", None), "tooltip": [tip("text", "event")]},
    }
    return spec(
        _height(len(activity.rows)),
        _cells(cells, f"datum.name == '{TRAINING}'", "@waiting", None),
        _cells(cells, f"datum.name != '{TRAINING}'", "@cpu-strong", _BUSY_LEGEND),
        events,
        resolve={"scale": {"color": "independent"}},
    )


def _height(rows: int) -> int:
    return max(_ROW * rows, _FEW_ROWS)


_BUSY_LEGEND: Spec = {
    "orient": "top",
    "title": "busy",
    "format": ".0%",
    "gradientLength": 140,
    "values": [0, 0.5, 1],
}


def _cells(encoding: Spec, which: str, color: str, legend: Spec | None) -> Spec:
    scale = {"domain": [0, 1], "range": ["@empty", color], "interpolate": "rgb"}
    return {
        "transform": [{"filter": which}],
        "mark": {"type": "rect", "height": {"band": 0.86}},
        "encoding": {**encoding, "color": numeric("share", None, scale=scale, legend=legend)},
    }


def _detail_chart(timeline: Timeline, waits: Waits, work: Work) -> Chart:
    names = {each.worker.number: each.worker.name for each in work.workers}
    choices = tuple(
        Choice(window.title, {"rows": _detail_rows(window, names, work.begin_ns)})
        for window in windows_of(timeline, waits)
    )
    rows = [TRAINING_ROW, *([COPY_ROW] if timeline.copies else []), *names.values()]
    label = "Single tiny-batches of each worker around a moment; colors tell mini-batches apart."
    return Chart("detail-chart", label, _detail_spec(rows), choices)


class _Slice(NamedTuple):
    row: str
    begin_ns: int
    end_ns: int
    color: str
    batch: str
    what: str


def _detail_rows(window: Window, names: Mapping[int, str], origin_ns: int) -> Columns:
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


def _of_training(window: Window) -> Iterator[_Slice]:
    """Yields waits, and what is between two of them: training."""
    left: dict[int, int] = {}
    for step in window.steps:
        batch = f"{step.epoch}:{step.batch}"
        begin = left.get(step.iterator, window.begin_ns)
        if begin < step.asked_ns:
            between = duration((step.asked_ns - begin) / 1e9)
            yield _Slice(TRAINING_ROW, begin, step.asked_ns, TRAINING_ROW, batch, between)
        wait = f"waits {duration(step.wait_ns / 1e9)}"
        yield _Slice(TRAINING_ROW, step.asked_ns, step.delivered_ns, _WAITING, batch, wait)
        left[step.iterator] = step.delivered_ns


def _of_copies(window: Window) -> Iterator[_Slice]:
    for copy in window.copies:
        batch = f"{copy.epoch}:{copy.batch}"
        yield _Slice(COPY_ROW, copy.begin_ns, copy.end_ns, COPY_ROW, batch, size(copy.nbytes))


def _of_workers(window: Window, names: Mapping[int, str]) -> Iterator[_Slice]:
    for span in window.spans:
        color = f"batch {span.batch % _BATCH_COLORS}"
        batch = f"{span.epoch}:{span.batch}"
        yield _Slice(
            names[span.worker], span.begin_ns, span.end_ns, color, batch, _what_was_done(span)
        )


def _what_was_done(span: Span) -> str:
    parts = [f"{name} {duration(ns / 1e9)}" for name, ns in span.parts.items() if ns]
    read = [size(span.nbytes)] if span.nbytes else []
    samples, took = count(span.samples, "sample"), duration(span.duration_ns / 1e9)
    return ", ".join([samples, *read, took, *parts])


def _detail_spec(rows: Sequence[str]) -> Spec:
    scheme = {TRAINING_ROW: "@training", _WAITING: "@waiting", COPY_ROW: "@delivery"}
    marked = [name for name in scheme if name != COPY_ROW or COPY_ROW in rows]
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
    return spec(_height(len(rows)), slices)


def _worker_table(work: Work) -> Table:
    rows = tuple(
        (
            each.worker.name,
            percent(each.busy_share),
            f"{each.samples:,}",
            size(each.nbytes),
            str(each.restarts),
        )
        for each in work.workers
    )
    return Table("Workers", ("Worker", "Busy", "Samples", "Read", "Restarts"), rows)
