"""What the iterators of one loader share, and what the loader wants of the one under way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from fusionloader.data.epochs.epochs import Epochs
from fusionloader.observe.statistics.counters import Statistics
from fusionloader.observe.trace.recording import CurrentTrace

Window = AbstractContextManager[object]


class LoaderState:
    """Epochs and statistics of a loader; a copied or pickled loader begins anew.

    Attributes:
        workers: that iterators are to have from the next batch on, ``None`` if it has not changed.
        idle_window: returns the method by which the latest iterator with workers opens an idle
            window for its GPU worker, ``None`` when that iterator is gone.
        traces: the trace of the loader, if one is on.
        refused: what torch does instead, and which call CUDA has refused; ``None`` while none.
    """

    def __init__(self) -> None:
        self.epochs = Epochs()
        self.statistics = Statistics()
        self.traces = CurrentTrace()
        self.workers: int | None = None
        self.refused: str | None = None
        self.idle_window: Callable[[], Callable[[], Window] | None] = lambda: None

    def __reduce__(self) -> tuple[type[LoaderState], tuple[()]]:
        return type(self), ()
