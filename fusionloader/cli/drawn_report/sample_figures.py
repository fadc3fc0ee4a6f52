"""What a sample costs: divided by stages, and against the size of its file."""

from __future__ import annotations

import numpy as np

from fusionloader.cli.drawn_report.analysis.costs import Costs, costs_of
from fusionloader.cli.drawn_report.analysis.words import duration, number, percent
from fusionloader.cli.drawn_report.analysis.work import KINDS, OTHER, STAGES, KindWork, Work
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
from fusionloader.observe.statistics.stages import STAGES_IN_WORDS, costliest_stage
from fusionloader.observe.trace.timeline import Timeline
from fusionloader.system.amounts import counted

_LEGEND = {"expr": "width < 420 ? 3 : 6"}  # columns: one row of them does not fit on a phone
_KIND_COLORS = {"cpu": "@cpu-strong", "borrowed": "@delivery", "remote": "@training", "gpu": "@gpu"}


def stages_figure(work: Work) -> Figure:
    """Returns where the time of a sample goes, for each kind of worker."""
    title = "Where does a sample's time go?"
    kinds = " ".join(_in_words(kind) for kind in work.kinds)
    found = [(kind, stage) for kind in work.kinds for stage in kind.stages]
    milliseconds = [stage.seconds / stage.samples * 1e3 for _, stage in found]
    rows: Columns = {
        "name": [kind.name for kind, _ in found],
        "stage": [stage.name for _, stage in found],
        "order": [STAGES.index(stage.name) for _, stage in found],
        "ms": rounded(milliseconds),
        "share": rounded(
            [stage.seconds / sum(each.seconds for each in kind.stages) for kind, stage in found]
        ),
    }
    listed = tuple(
        (kind.name, stage.name, f"{number(ms)} ms")
        for (kind, stage), ms in zip(found, milliseconds, strict=True)
    )
    seen = [stage for stage in STAGES if stage in rows["stage"]]
    drawn = chart("stages-chart", kinds, _stages_spec(len(work.kinds), seen), rows=rows)
    table = Table("Time of a sample", ("Workers", "Stage", "Time"), listed)
    return Figure("stages", title, f"{kinds} Means over all samples.", (drawn,), table)


def _in_words(kind: KindWork) -> str:
    stage, share = costliest_stage(kind.stages)
    takes = f"A sample takes a {kind.name.removesuffix('s')} {duration(kind.seconds_per_sample)}"
    if stage.name == OTHER:  # as on a GPU, where stages overlap
        return f"{takes}."
    return f"{takes}, {percent(share)} of it {STAGES_IN_WORDS[stage.name]}."


def _stages_spec(kinds: int, seen: list[str]) -> Spec:
    scheme = {stage: f"@{stage}" for stage in seen}
    bars: Spec = {
        "mark": {"type": "bar", "height": {"band": 0.62}, "stroke": "@surface", "strokeWidth": 1},
        "encoding": {
            "y": nominal("name", axis={"ticks": False, "domain": False}),
            "x": numeric("ms", "ms of a worker for each sample", stack="zero"),
            "color": colors("stage", scheme, orient="top", columns=_LEGEND),
            "order": numeric("order", None),
            "tooltip": [
                tip("name", "workers"),
                tip("stage", "stage"),
                tip("ms", "ms for each sample", ".3~r"),
                tip("share", "share", ".0%"),
            ],
        },
    }
    return spec(44 * kinds, bars)


def costs_figure(timeline: Timeline) -> Figure:
    """Returns the cost of samples against the sizes of their files."""
    title = "Do large files cost more?"
    costs = costs_of(timeline)
    if costs is None:
        text = (
            "The trace has no sizes of files: the samples were read by the dataset's own code, or "
            "decoded images were kept."
        )
        return Figure("costs", title, text)
    text = (
        f"{_comparison(costs)} Cells count {counted(costs.samples, 'sample')}; lines join the "
        "medians of each kind of worker. Both scales are logarithmic."
    )
    drawn = chart(
        "costs-chart",
        text,
        _costs_spec(costs),
        rows=_cells(costs),
        medians={
            "kind": [KINDS[each.kind] for each in costs.classes],
            "kb": rounded([each.kilobytes for each in costs.classes]),
            "ms": rounded([each.milliseconds for each in costs.classes]),
        },
    )
    return Figure("costs", title, text, (drawn,), _costs_table(costs))


def _comparison(costs: Costs) -> str:
    """Returns how much more the largest files cost those workers that made the most samples."""
    first = costs.classes[0].kind
    own = [each for each in costs.classes if each.kind == first]
    small, large = own[0], own[-1]
    if large.kilobytes < 1.1 * small.kilobytes:
        return f"All files have about the same size, {number(small.kilobytes)} kB."
    return (
        f"A sample of {number(small.kilobytes)} kB takes {number(small.milliseconds)} ms, one of "
        f"{number(large.kilobytes)} kB {number(large.milliseconds)} ms ({KINDS[first]})."
    )


def _cells(costs: Costs) -> Columns:
    across, up = np.nonzero(costs.counts)
    return {
        "left": rounded(costs.kilobytes[across]),
        "right": rounded(costs.kilobytes[across + 1]),
        "low": rounded(costs.milliseconds[up]),
        "high": rounded(costs.milliseconds[up + 1]),
        "samples": costs.counts[across, up].astype(int).tolist(),
    }


def _costs_spec(costs: Costs) -> Spec:
    scheme = {
        KINDS[kind]: _KIND_COLORS[kind] for kind in KINDS if kind in {c.kind for c in costs.classes}
    }
    log: Spec = {"type": "log", "nice": False}
    cells: Spec = {
        "mark": {"type": "rect"},
        "encoding": {
            "x": numeric("left", "size of the file, kB", scale=log),
            "x2": {"field": "right"},
            "y": numeric("low", "ms of a worker", scale=log),
            "y2": {"field": "high"},
            "color": numeric(
                "samples",
                None,
                scale={"type": "sqrt", "range": ["@cell-few", "@cell-many"]},
                legend=None,
            ),
            "tooltip": [
                tip("left", "kB from", ".3~r"),
                tip("low", "ms from", ".3~r"),
                tip("samples", "samples", ",d"),
            ],
        },
    }
    medians: Spec = {
        "data": {"name": "medians"},
        "mark": {"type": "line", "point": {"size": 45}, "strokeWidth": 2},
        "encoding": {
            "x": numeric("kb", None, scale=log),
            "y": numeric("ms", None, scale=log),
            "color": colors("kind", scheme, orient="top"),
            "tooltip": [tip("kind", "median of"), tip("kb", "kB", ".3~r"), tip("ms", "ms", ".3~r")],
        },
    }
    return spec(280, cells, medians, resolve={"scale": {"color": "independent"}})


def _costs_table(costs: Costs) -> Table:
    rows = tuple(
        (
            KINDS[each.kind],
            f"{each.samples:,}",
            f"{number(each.kilobytes)} kB",
            f"{number(each.milliseconds)} ms",
        )
        for each in costs.classes
    )
    header = ("Workers", "Samples", "Size of the file", "Time of a sample")
    return Table("Medians, from small files to large ones", header, rows)
