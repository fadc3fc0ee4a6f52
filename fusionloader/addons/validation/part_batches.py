"""The batches of a part, as ``evaluate`` gets them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from fusionloader.addons.validation.results import rows_of
from fusionloader.addons.validation.streams import Isolation
from fusionloader.engine.delivery.to_device import to_device

_NO_BATCH = object()


@dataclass(slots=True)
class PartProgress:
    """Progress of a part: batches and samples taken, seconds in ``evaluate``."""

    batches: int = 0
    samples: int = 0
    seconds: float = 0.0

    def __add__(self, other: PartProgress) -> PartProgress:
        return PartProgress(
            self.batches + other.batches, self.samples + other.samples, self.seconds + other.seconds
        )


class PartBatches(Iterator[Any]):
    """An iterator for ``evaluate``, which counts the time between batches."""

    def __init__(
        self,
        batches: Iterator[Any],
        progress: PartProgress,
        isolation: Isolation,
        device: torch.device | None,
        turn: AbstractContextManager[object],
    ) -> None:
        self._batches, self._progress = batches, progress
        self._isolation, self._device, self._turn = isolation, device, turn
        self._next: Any = _NO_BATCH
        self._current: Any = None
        self._computing_since: float | None = None

    def peek(self) -> bool:
        """Waits for the next batch; returns whether there is one."""
        if self._next is _NO_BATCH:
            self._next = next(self._batches, _NO_BATCH)
        return self._next is not _NO_BATCH

    def __next__(self) -> Any:
        """Returns the next batch, on the device."""
        self._pause()
        if self._current is not None:
            self._isolation.hold(self._current)
            self._current = None
        there = self.peek()
        self._resume()
        if not there:
            raise StopIteration
        (batch, ready), self._next = self._next, _NO_BATCH
        if ready is not None:
            torch.cuda.current_stream(ready.device).wait_event(ready)
        self._progress.batches += 1
        self._progress.samples += rows_of(batch)
        moved = to_device(batch, self._device)
        self._current = (batch, moved)
        return moved

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Counts the time of the block, which runs ``evaluate``."""
        self._resume()
        try:
            yield
        finally:
            self._pause()

    def _resume(self) -> None:
        self._turn.__enter__()
        self._computing_since = time.monotonic()

    def _pause(self) -> None:
        if self._computing_since is not None:
            self._progress.seconds += time.monotonic() - self._computing_since
            self._computing_since = None
            self._turn.__exit__(None, None, None)
