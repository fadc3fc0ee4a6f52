"""How long each step waited, and which stage could have been faster."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fusionloader.cli.drawn_report.analysis.waits import TraceWaits
from fusionloader.cli.drawn_report.analysis.words import duration, number, percent
from fusionloader.cli.drawn_report.analysis.work import Work
from fusionloader.cli.drawn_report.chart import (
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
from fusionloader.observe.trace.timeline import Step
from fusionloader.system.amounts import counted

_MOST_BARS = 250
_LONGEST_LISTED = 20
_FOR_WORKERS, _FOR_DELIVERY, _WAIT = "for workers", "for delivery", "wait"
_ALL_STAGES, _TRAINING = "all stages", "training"
# Bars end at so many times of what matters: a stage that could make a hundred times as much would
# leave nothing of the others to be seen.
_LONGEST_BAR = 3
_RATE_TEXT = "format(datum.rate, ',.3~r') + (datum.rate > datum.bar ? ' …' : '')"
_RATES: Spec = {"format": ",~f"}


def capacity_figure(waits: TraceWaits, work: Work) -> Figure:
    """Returns what each stage could make, beside what training takes."""
    title = "Which stage limits?"
    cpu = work.kind("cpu")
    if cpu is None:
        text = "The trace has no sample that a CPU worker made, so no stage's capacity is known."
        return Figure("capacity", title, text)
    names = [*(stage.name for stage in cpu.stages), _ALL_STAGES]
    rates = [*(stage.capacity for stage in cpu.stages), cpu.capacity]
    groups = ["stage"] * len(cpu.stages) + ["all"]
    takes = waits.training_rate
    text = (
        f"Samples per second that {counted(cpu.workers, 'CPU worker')} could make with each stage "
        "alone, and with all of them. A bar shorter than training's limits it."
    )
    if takes is not None:
        names, rates, groups = [*names, _TRAINING], [*rates, takes], [*groups, "training"]
    limit = _LONGEST_BAR * max(cpu.capacity, takes or 0.0)
    rows: Columns = {
        "name": names,
        "rate": rounded(rates),
        "bar": rounded([min(rate, limit) for rate in rates]),
        "group": groups,
    }
    header = ("Stage", "Samples per second")
    listed = tuple(zip(names, [number(rate) for rate in rates], strict=True))
    drawn = chart("capacity-chart", text, _capacity_spec(len(names), limit), rows=rows)
    return Figure("capacity", title, text, (drawn,), Table("Capacities", header, listed))


def _capacity_spec(bars: int, limit: float) -> Spec:
    scheme = {"stage": "@cpu", "all": "@cpu-strong", "training": "@training"}
    scale = {"domain": [0, limit * 1.2], "nice": False}
    shared = {
        "y": nominal("name", axis={"ticks": False, "domain": False}),
        "x": numeric("bar", "samples per second", scale=scale, axis=_RATES),
        "tooltip": [tip("name", "stage"), tip("rate", "samples per second", ",.4~r")],
    }
    return spec(
        32 * bars,
        {
            "mark": {"type": "bar", "height": {"band": 0.62}, "cornerRadiusEnd": 3},
            "encoding": {"color": {**colors("group", scheme), "legend": None}},
        },
        {
            "transform": [{"calculate": _RATE_TEXT, "as": "text"}],
            "mark": {"type": "text", "align": "left", "dx": 6, "color": "@text"},
            "encoding": {"text": nominal("text")},
        },
        encoding=shared,
    )


def wait_figure(waits: TraceWaits) -> Figure:
    """Returns the wait of each step, or of neighbouring ones where there are many."""
    title = "How long did each step wait?"
    text = _first_batches(waits)
    places = np.flatnonzero(waits.counted)
    if not len(places):
        return Figure("waits", title, f"No epoch has two steps in this trace. {text}")
    quantiles = ", ".join(
        f"{_at(waits, percents)} in {percents} of 100 steps" for percents in (50, 95, 99)
    )
    bins = np.array_split(places, min(_MOST_BARS, len(places)))
    each = "Each bar is a step"
    if len(bins) < len(places):
        each = f"Each bar is the mean of {counted(len(bins[0]), 'neighbouring step')}"
    text = f"At most {quantiles}. {each}. {text}"
    drawn = chart("waits-chart", text, _wait_spec(waits), rows=_wait_rows(waits, bins))
    return Figure("waits", title, text, (drawn,), _longest_waits(waits))


def _at(waits: TraceWaits, percents: int) -> str:
    return duration(waits.percentile(percents) or 0.0)


def _first_batches(waits: TraceWaits) -> str:
    first = waits.first_seconds
    if not len(first):
        return ""
    if len(first) == 1:
        return f"The epoch's first batch is not among them: it waited {duration(float(first[0]))}."
    mean = duration(float(first.mean()))
    return f"The first batches of {len(first)} epochs are not among them: {mean} on average."


def _wait_rows(waits: TraceWaits, bins: list[npt.NDArray[np.intp]]) -> Columns:
    """Returns two rectangles a bar, one on the other, or one where the cause is not known."""
    causes = [(_WAIT, waits.seconds)]
    if waits.knows_workers:
        delivery = waits.seconds - waits.for_workers
        causes = [(_FOR_WORKERS, waits.for_workers), (_FOR_DELIVERY, delivery)]
    rows: dict[str, list[object]] = {
        name: [] for name in ("from", "to", "low", "high", "cause", "mean", "longest", "where")
    }
    for part in bins:
        low = 0.0
        for cause, seconds in causes:
            mean = float(seconds[part].mean()) * 1e3
            rows["from"].append(int(part[0]))
            rows["to"].append(int(part[-1]) + 1)
            rows["low"].append(round(low, 4))
            rows["high"].append(round(low + mean, 4))
            rows["cause"].append(cause)
            rows["mean"].append(round(mean, 4))
            rows["longest"].append(round(float(waits.seconds[part].max()) * 1e3, 4))
            rows["where"].append(_where(waits.steps[part[0]], waits.steps[part[-1]]))
            low += mean
    return rows


def _where(first: Step, last: Step) -> str:
    begin, end = (f"{step.epoch}:{step.batch}" for step in (first, last))
    return begin if begin == end else f"{begin} to {end}"


def _wait_spec(waits: TraceWaits) -> Spec:
    scheme = {_FOR_WORKERS: "@waiting", _FOR_DELIVERY: "@delivery"}
    if not waits.knows_workers:
        scheme = {_WAIT: "@waiting"}
    bars: Spec = {
        "mark": {"type": "rect"},
        "encoding": {
            "x": numeric("from", "step of the trace", scale={"nice": False}),
            "x2": {"field": "to"},
            "y": numeric("low", "wait, ms"),
            "y2": {"field": "high"},
            "color": colors("cause", scheme, orient="top"),
            "tooltip": [
                tip("where", "epoch:batch"),
                tip("cause", "waited"),
                tip("mean", "mean, ms", ".3~r"),
                tip("longest", "longest wait, ms", ".3~r"),
            ],
        },
    }
    return spec(220, bars)


def _longest_waits(waits: TraceWaits) -> Table:
    places = np.flatnonzero(waits.counted)
    longest = places[np.argsort(-waits.seconds[places], kind="stable")][:_LONGEST_LISTED]
    rows = []
    for place in longest.tolist():
        step, whole = waits.steps[place], float(waits.seconds[place])
        part = float(waits.for_workers[place]) / whole if whole else 0.0
        rows.append(
            (
                str(step.epoch),
                str(step.batch),
                duration(whole),
                percent(part) if waits.knows_workers else "not known",
            )
        )
    return Table("The longest waits", ("Epoch", "Batch", "Wait", "For workers"), tuple(rows))
