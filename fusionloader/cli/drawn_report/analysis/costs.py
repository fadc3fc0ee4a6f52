"""What a sample costs a worker against the size of its file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fusionloader.cli.drawn_report.analysis.busy_time import Array
from fusionloader.cli.drawn_report.analysis.work import KINDS
from fusionloader.observe.trace.timeline import Timeline, WorkerKind

_ACROSS, _UP = 36, 28
_SIZE_CLASSES = 9


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Samples of a kind of worker with about the same size of file; medians."""

    kind: WorkerKind
    samples: int
    kilobytes: float
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Costs:
    """Of samples whose encoded bytes are known, means over the tiny-batches they came in.

    Attributes:
        samples: how many they are.
        counts: numbers of samples, by bin of size and bin of cost.
        kilobytes: edges of the bins of size, which grow by the same factor.
        milliseconds: edges of those of cost.
        classes: medians, smallest files first.
    """

    samples: int
    counts: Array
    kilobytes: Array
    milliseconds: Array
    classes: tuple[SizeClass, ...]


def costs_of(timeline: Timeline) -> Costs | None:
    """Returns what samples cost; ``None`` where no size of a file is known."""
    kinds = {worker.number: worker.kind for worker in timeline.meta.workers}
    spans = [s for s in timeline.spans if s.nbytes > 0 and s.samples > 0 and s.duration_ns > 0]
    if not spans:
        return None
    samples = np.array([span.samples for span in spans])
    sizes = np.array([span.nbytes for span in spans]) / samples / 1e3
    times = np.array([span.duration_ns for span in spans]) / samples / 1e6
    across, up = _edges(sizes, _ACROSS), _edges(times, _UP)
    counts, _, _ = np.histogram2d(sizes, times, (across, up), weights=samples)
    classes: list[SizeClass] = []
    for kind in KINDS:
        chosen = np.array([kinds.get(span.worker, "cpu") == kind for span in spans])
        classes += _classes(kind, samples[chosen], sizes[chosen], times[chosen])
    return Costs(int(samples.sum()), counts, across, up, tuple(classes))


def _edges(values: Array, bins: int) -> Array:
    """Returns edges that grow by a factor and have all values between them, equal ones, too."""
    low, high = values.min() * 0.95, values.max() * 1.05
    return np.geomspace(low, high, bins + 1)


def _classes(kind: WorkerKind, samples: Array, sizes: Array, times: Array) -> Sequence[SizeClass]:
    """Returns classes of as many tiny-batches each."""
    order = np.argsort(sizes, kind="stable")
    return [
        SizeClass(
            kind,
            int(samples[part].sum()),
            float(np.median(sizes[part])),
            float(np.median(times[part])),
        )
        for part in np.array_split(order, _SIZE_CLASSES)
        if len(part)
    ]
