"""How busy each worker was over time: few numbers, however long the trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusionloader.cli.drawn_report.analysis.busy_time import Array, BusyTime
from fusionloader.cli.drawn_report.analysis.work import Work
from fusionloader.observe.trace.timeline import Step

MOST_CELLS = 2_500
_MOST_BINS, _FEWEST_BINS = 160, 20
TRAINING = "training waits"


@dataclass(frozen=True, slots=True)
class Activity:
    """Shares of time, by row and bin.

    Attributes:
        edges: edges of the bins, in seconds since the first event; one more than there are bins.
        rows: the share of each bin in which training waited, and in which each worker was busy.
    """

    edges: Array
    rows: dict[str, Array]


def activity_of(work: Work, steps: tuple[Step, ...]) -> Activity:
    """Returns what training and workers did over time."""
    rows = {TRAINING: BusyTime((step.asked_ns, step.delivered_ns) for step in steps)}
    rows |= {each.worker.name: each.busy for each in work.workers}
    bins = min(_MOST_BINS, max(_FEWEST_BINS, MOST_CELLS // len(rows)))
    edges = np.linspace(work.begin_ns, work.end_ns, bins + 1)
    lengths = np.diff(edges)
    shares = {name: busy.between(edges[:-1], edges[1:]) / lengths for name, busy in rows.items()}
    return Activity((edges - work.begin_ns) / 1e9, shares)
