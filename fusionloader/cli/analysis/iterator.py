"""What a script under analysis gets from ``iter(loader)``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fusionloader.cli.analysis.probes import end, steps_of
from fusionloader.cli.analysis.watched import WatchedLoader
from fusionloader.options.aliases import Batch

if TYPE_CHECKING:
    from fusionloader.cli.analysis.session import Session


class WatchedIterator:
    """What the script gets from ``iter(loader)``; everything else is asked of its own iterator."""

    def __init__(
        self, watched: WatchedLoader, make_own: Callable[[], Iterator[Batch]], session: Session
    ) -> None:
        """``make_own`` makes the iterator that the script would have without an analysis."""
        self._watched, self._make_own, self._session = watched, make_own, session
        self._own = make_own() if watched.needs_own else None
        self._delivered = 0
        self._limit = steps_of(watched.loader)
        self._batch: Batch = None
        self._waited = self._left = self._cpu = 0.0
        watched.begin_epoch()

    def __iter__(self) -> WatchedIterator:
        return self

    def __len__(self) -> int:
        return len(self._watched.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def __next__(self) -> Batch:
        self._end_step()
        with self._session.paused():
            batch = self._next_batch()
        self._cpu, self._left = time.process_time(), time.perf_counter()
        return batch

    def _next_batch(self) -> Batch:
        watched = self._watched
        self._session.check()
        watched.advance()
        if watched.needs_own:
            if self._own is None:
                self._own = self._make_own()
            started = time.perf_counter()
            batch = next(self._own)
            waited = time.perf_counter() - started
            watched.keep(batch)
        else:
            self._leave_own()
            if self._at_end():
                raise StopIteration
            batch, waited = watched.substitute()
        self._delivered += 1
        self._batch, self._waited = batch, waited
        return batch

    def _at_end(self) -> bool:
        if self._limit is not None and self._delivered >= self._limit:
            return True
        if not self._watched.finished:
            return False
        # Other loaders are still to be measured: the script is to come to them.
        return self._limit is None or not self._watched.rest_is_short(self._limit - self._delivered)

    def _end_step(self) -> None:
        if self._batch is None:
            return
        elsewhere = time.perf_counter() - self._left
        cpu_seconds = time.process_time() - self._cpu
        workers = [worker.pid for worker in getattr(self._own, "_workers", ())]
        self._watched.step_done(self._batch, self._waited, elsewhere, cpu_seconds, workers)
        self._batch = None

    def _leave_own(self) -> None:
        """Ends the user's workers, which would otherwise go on making batches."""
        if self._own is not None:
            self._own = None
            end(self._watched.loader)
