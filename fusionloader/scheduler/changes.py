"""When what was learned no longer holds: a rate that has left its former value for good."""

from __future__ import annotations

import statistics
from collections import deque

CHANGE = 0.2  # a rate that differs by more is another one
WINDOW = 15


class RateWatch:
    """Compares the median of the last rates with that of the first ones.

    Medians, since a single slow mini-batch (a cold file, a checkpoint) changes nothing: a change is
    reported once it persists for more than half a window.

    Attributes:
        current: the median of the last rates, ``None`` until there is a window of them.
    """

    def __init__(self, share: float = CHANGE, window: int = WINDOW) -> None:
        self._share = share
        self._recent: deque[float] = deque(maxlen=window)
        self._reference: float | None = None
        self.current: float | None = None

    def forget(self) -> None:
        """Takes the next rates as the new reference."""
        self._recent.clear()
        self._reference = self.current = None

    def moved(self, rate: float | None) -> bool:
        """Notes a rate, ``None`` where none was measured; returns whether the rate has changed."""
        if rate is None:
            return False
        self._recent.append(rate)
        if len(self._recent) < (self._recent.maxlen or 0):
            return False
        self.current = statistics.median(self._recent)
        if self._reference is None:
            self._reference = self.current
        return abs(self.current - self._reference) > self._share * self._reference
