"""What the iterators of one loader share, and what the loader wants of the one under way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from fusionloader.resume.epochs import Epochs
from fusionloader.statistics.counters import Statistics
from fusionloader.trace.recording import CurrentTrace

if TYPE_CHECKING:  # iterators work where the native part is missing
    from fusionloader.deferred.kept import ImageStores

Window = AbstractContextManager[object]


class LoaderState:
    """Epochs and statistics of a loader; a copied or pickled loader begins anew.

    Attributes:
        workers: that iterators are to have from the next batch on, ``None`` if it has not changed.
        idle_window: returns the method by which the latest iterator with workers opens an idle
            window for its GPU worker, ``None`` when that iterator is gone.
        image_stores: where workers keep something of the images that user code opens; ``None``
            where images are not deferred.
        traces: the trace of the loader, if one is on.
    """

    def __init__(self) -> None:
        self.epochs = Epochs()
        self.statistics = Statistics()
        self.traces = CurrentTrace()
        self.workers: int | None = None
        self.image_stores: ImageStores | None = None
        self.idle_window: Callable[[], Callable[[], Window] | None] = lambda: None

    def __reduce__(self) -> tuple[type[LoaderState], tuple[()]]:
        return LoaderState, ()
