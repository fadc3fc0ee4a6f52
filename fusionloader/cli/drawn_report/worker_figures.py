"""What workers did over time: the whole trace as shares of time."""

from __future__ import annotations

from fusionloader.cli.drawn_report.analysis.activity import TRAINING, Activity, activity_of
from fusionloader.cli.drawn_report.analysis.waits import TraceWaits
from fusionloader.cli.drawn_report.analysis.words import number, percent, size
from fusionloader.cli.drawn_report.analysis.work import Work
from fusionloader.cli.drawn_report.chart import (
    SECONDS,
    Chart,
    Columns,
    Figure,
    Spec,
    Table,
    chart,
    nominal,
    numeric,
    rounded,
    rows_height,
    spec,
    tip,
)
from fusionloader.cli.drawn_report.detail_chart import detail_chart
from fusionloader.observe.trace.timeline import Timeline
from fusionloader.system.amounts import counted

_MOST_EVENTS = 60


def workers_figure(timeline: Timeline, waits: TraceWaits, work: Work) -> Figure:
    """Returns the workers' timeline, whole and at moments that are worth a closer look."""
    title = "What did the workers do?"
    if not work.workers:
        why = timeline.meta.steps_only or "it has nothing that a worker did"
        return Figure("workers", title, f"No worker is seen in this trace: {why}.")
    activity = activity_of(work, timeline.steps)
    busy = [each.busy_share for each in work.workers]
    text = (
        f"{counted(len(work.workers), 'worker')} were busy {percent(sum(busy) / len(busy))} of the "
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
        charts = (whole, detail_chart(timeline, waits, work))
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
        rows_height(len(activity.rows)),
        _cells(cells, f"datum.name == '{TRAINING}'", "@waiting", None),
        _cells(cells, f"datum.name != '{TRAINING}'", "@cpu-strong", _BUSY_LEGEND),
        events,
        resolve={"scale": {"color": "independent"}},
    )


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
