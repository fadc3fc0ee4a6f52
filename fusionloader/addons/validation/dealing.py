"""Deals a loader's batches out to parts, so that each part depends on the loader alone."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")

_DEPTH = 2  # batches that wait for a part; the loader has its own ahead


class Stopped(Exception):
    """Raised where batches of a validation that was given up are asked for."""


class Dealer:
    """Gives batch *i* to part *i* modulo the number of parts.

    One thread reads, one takes for each part. The reader waits while the next part in turn has
    ``_DEPTH`` batches, so that memory is bounded.
    """

    def __init__(self, parts: int) -> None:
        self._queues: list[deque[object]] = [deque() for _ in range(parts)]
        self._changed = threading.Condition()
        self._ended = False
        self._stopped = False

    def give(self, number: int, batch: object) -> None:
        """Gives batch ``number`` to its part; waits for room.

        Raises:
            Stopped: ``stop`` was called.
        """
        queue = self._queues[number % len(self._queues)]
        with self._changed:
            self._changed.wait_for(lambda: len(queue) < _DEPTH or self._stopped)
            if self._stopped:
                raise Stopped
            queue.append(batch)
            self._changed.notify_all()

    def end(self) -> None:
        """Called behind the last batch."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Has all calls raise ``Stopped``, now and from now on."""
        with self._changed:
            self._stopped = True
            for queue in self._queues:
                queue.clear()
            self._changed.notify_all()

    def take(self, part: int) -> Iterator[object]:
        """Yields a part's batches, as they come.

        Raises:
            Stopped: ``stop`` was called.
        """
        queue = self._queues[part]
        while True:
            with self._changed:
                self._changed.wait_for(lambda: queue or self._ended or self._stopped)
                if self._stopped:
                    raise Stopped
                if not queue:
                    return
                batch = queue.popleft()
                self._changed.notify_all()
            yield batch
            del batch
