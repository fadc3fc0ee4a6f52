"""Detection of lasting changes of a rate."""

from __future__ import annotations

import statistics
from collections import deque

CHANGE = 0.2  # relative difference from which on a rate has changed
WINDOW = 15  # rates


class RateWatch:
    """Compares the median of the last rates with that of the first ones.

    A single slow mini-batch (a cold file, a checkpoint) hardly moves a median: a change is reported
    only once it persists for more than half a window.

    Attributes:
        current: median of the last rates; ``None`` until there is a full window of them.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._recent: deque[float] = deque(maxlen=window)
        self._reference: float | None = None
        self.current: float | None = None

    def forget(self) -> None:
        """Takes the next rates as the new reference."""
        self._recent.clear()
        self._reference = self.current = None

    def moved(self, rate: float | None) -> bool:
        """Adds a rate (``None`` if not measured); returns whether the rate has changed."""
        if rate is None:
            return False
        self._recent.append(rate)
        if len(self._recent) < (self._recent.maxlen or 0):
            return False
        self.current = statistics.median(self._recent)
        if self._reference is None:
            self._reference = self.current
        return abs(self.current - self._reference) > CHANGE * self._reference
