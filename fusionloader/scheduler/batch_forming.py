"""When a dynamic batch opens and closes. Each event has its time, in seconds.

An image gets its row when it is submitted, so that workers start on it at once. The batch is closed
when it is full, or a fixed time after its first image.
"""

from __future__ import annotations

import math


class BatchForming:
    """The open batch, if there is one.

    Attributes:
        rows: number of rows in use; 0 if no batch is open.
        deadline: time at which the batch is closed at the latest; infinity if none is open.
    """

    def __init__(self, max_batch: int, max_delay: float) -> None:
        """``max_batch`` is in rows, ``max_delay`` in seconds, or infinite: no deadline."""
        self._max_batch, self._max_delay = max_batch, max_delay
        self.rows = 0
        self.deadline = math.inf

    def is_due(self, now: float) -> bool:
        """Whether the open batch must be closed before another image is added."""
        return now >= self.deadline

    def add(self, now: float) -> int:
        """Adds an image and returns its row; row 0 opens a batch, row ``max_batch - 1`` closes it.

        Raises:
            ValueError: the batch is due and must be closed first.
        """
        if self.is_due(now):
            raise ValueError("the batch is due: close it before another image is added")
        row = self.rows
        if row == 0:
            self.deadline = now + self._max_delay
        self.rows += 1
        if self.rows == self._max_batch:
            self.close()
        return row

    def close(self) -> None:
        """Closes the batch, if one is open: the next image opens another."""
        self.rows = 0
        self.deadline = math.inf
