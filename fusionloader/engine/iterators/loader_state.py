"""State that the iterators of one loader share, and requests of the loader to its iterator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from fusionloader.data.epochs.epochs import Epochs
from fusionloader.observe.statistics.loader_statistics import Statistics
from fusionloader.observe.trace.recording import CurrentTrace

Window = AbstractContextManager[object]


class LoaderState:
    """Epochs and statistics of a loader. A copied or pickled loader starts with a new one.

    Attributes:
        epochs: the loader's epochs.
        statistics: the loader's counters.
        traces: the trace of the loader, if one is being recorded.
        workers: number of workers from the next batch on; ``None`` if it was not changed.
        refused: text on a CUDA call that was refused; ``None`` if none was.
        idle_window: returns the method of the latest iterator with workers that opens an idle
            window for its GPU worker; ``None`` after that iterator was freed.
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
