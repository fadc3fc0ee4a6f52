"""When a dynamic batch is opened and closed. Time is given with each event, in seconds.

An image gets its row when it is submitted, so that workers begin with it at once; the batch is
closed when it is full, or some time after its first image.
"""

from __future__ import annotations

import math


class BatchForming:
    """The batch that images are put into now.

    Attributes:
        rows: that it has, 0 where none is open.
        deadline: when it is closed at the latest; infinity where none is open.
    """

    def __init__(self, max_batch: int, max_delay: float) -> None:
        """``max_batch`` in rows; with an infinite ``max_delay`` a batch is closed when full."""
        self._max_batch, self._max_delay = max_batch, max_delay
        self.rows = 0
        self.deadline = math.inf

    def is_due(self, now: float) -> bool:
        """Whether the batch is to be closed before another image comes, if there is one."""
        return now >= self.deadline

    def add(self, now: float) -> int:
        """Puts an image into the batch and returns its row; row 0 opens the batch.

        The batch is full, and closed, if its next row would be ``max_batch``.

        Raises:
            ValueError: it is to be closed first.
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
        """Closes the batch, if there is one: the next image opens another."""
        self.rows = 0
        self.deadline = math.inf
