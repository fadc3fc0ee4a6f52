"""Ready mini-batches, the threshold and what is kept, over time; and what happened."""

from __future__ import annotations

import numpy as np

from fusionloader.cli.drawn_report.analysis.counters import CounterCourse, counters_of
from fusionloader.cli.drawn_report.analysis.words import duration
from fusionloader.cli.drawn_report.analysis.work import Work
from fusionloader.cli.drawn_report.chart import (
    SECONDS,
    Chart,
    Figure,
    Spec,
    Table,
    chart,
    numeric,
    rounded,
    spec,
    tip,
)
from fusionloader.observe.trace.timeline import READY, THRESHOLD, Timeline
from fusionloader.system.amounts import counted

_MOST_LISTED = 100
_MEANINGS = {
    READY: "none ready means that the next step waits",
    THRESHOLD: "tiny-batches of each mini-batch that are reserved for the GPU worker",
}


def counters_figure(timeline: Timeline, work: Work) -> Figure:
    """Returns the course of each counter."""
    title = "What changed over time?"
    found = counters_of(timeline, work.end_ns)
    if not found:
        return Figure("counters", title, "Nothing was counted over time in this trace.")
    text = " ".join(_in_words(counter) for counter in found)
    charts = tuple(_chart(number, counter, work) for number, counter in enumerate(found))
    rows = tuple((c.name, str(c.least), str(c.most), str(c.last)) for c in found)
    table = Table("Counters", ("Counter", "Least", "Most", "Last"), rows)
    return Figure("counters", title, text, charts, table)


def _in_words(counter: CounterCourse) -> str:
    name = counter.name[:1].upper() + counter.name[1:]
    meaning = f" ({_MEANINGS[counter.name]})" if counter.name in _MEANINGS else ""
    return f"{name}{meaning}: {counter.least:,} to {counter.most:,}, at last {counter.last:,}."


def _chart(place: int, counter: CounterCourse, work: Work) -> Chart:
    label = f"{_in_words(counter)}" + (" Means of short times." if counter.is_mean else "")
    at = (counter.moments - work.begin_ns) / 1e9
    # The last value holds until the end.
    values = np.append(counter.values, counter.values[-1])
    rows = {"at": rounded(np.append(at, work.seconds), 6), "value": rounded(values)}
    return chart(f"counter-{place}-chart", label, _spec(counter, work.seconds), rows=rows)


def _spec(counter: CounterCourse, seconds: float) -> Spec:
    scale = {"domain": [0, max(counter.most, 1)]}
    shape: Spec = {
        "mark": {
            "type": "area",
            "interpolate": "step-after",
            "line": {"color": "@cpu-strong", "strokeWidth": 1.5},
            "color": "@cpu",
            "opacity": 0.35,
        },
        "encoding": {
            "x": numeric("at", SECONDS, scale={"domain": [0, seconds], "nice": False}),
            "y": numeric("value", None, scale=scale, axis=_axis(counter)),
            "tooltip": [tip("at", "s", ".4~r"), tip("value", counter.name, ",.3~r")],
        },
    }
    return spec(110, shape, title={"text": counter.name, "anchor": "start"})


def _axis(counter: CounterCourse) -> Spec:
    """Returns ticks at whole numbers."""
    return {"tickCount": 4} if counter.most > 4 else {"values": [*range(max(counter.most, 1) + 1)]}


def events_figure(timeline: Timeline, work: Work) -> Figure:
    """Returns what happened, as a list."""
    title = "What happened?"
    seen = [each for each in timeline.instants if each.kind != "threshold"]
    if not seen:
        return Figure("events", title, "No worker was replaced, shared or added in this trace.")
    text = f"{counted(len(seen), 'event')}, seen when training next asked for a batch or waited."
    if len(seen) > _MOST_LISTED:
        text += f" The first {_MOST_LISTED} are listed."
    rows = tuple(
        (duration((each.at_ns - work.begin_ns) / 1e9), each.kind.replace("_", " "), each.text)
        for each in seen[:_MOST_LISTED]
    )
    return Figure("events", title, text, (), Table("Events", ("When", "Kind", "What"), rows))
