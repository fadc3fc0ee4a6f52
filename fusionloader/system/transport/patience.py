"""How long a peer's answer is waited for, and when a peer that failed is tried again."""

from __future__ import annotations

from collections import deque

_ANSWERS = 128  # that are remembered
_FEW = 16  # too few to tell a percentile by
_TIMES = 10.0
_LONGEST = 60.0  # seconds until a lost peer is tried again


class AnswerTimes:
    """Ten times the 95th percentile of the last answers, and no less than what it begins with."""

    def __init__(self, least: float) -> None:
        """Begins with so many seconds."""
        self._least = least
        self._times: deque[float] = deque(maxlen=_ANSWERS)
        self._count = 0
        self.deadline = least

    def add(self, seconds: float) -> None:
        """Learns how long an answer took."""
        self._times.append(seconds)
        self._count += 1
        if self._count % _FEW == 0:
            rank = len(self._times) * 95 // 100
            self.deadline = max(self._least, _TIMES * sorted(self._times)[rank])


class Absence:
    """Whether a peer is taken as gone; each time that it fails again, for twice as long."""

    def __init__(self, first: float = 1.0) -> None:
        """A peer that fails is gone for ``first`` seconds."""
        self._first = first
        self._next = first
        self._until = 0.0

    def is_over(self, now: float) -> bool:
        """Whether the peer may be asked."""
        return now >= self._until

    def failed(self, now: float) -> float:
        """Learns that the peer has failed; returns the seconds for which it is left alone."""
        seconds = self._next
        self._until = now + seconds
        self._next = min(2 * seconds, _LONGEST)
        return seconds

    def answered(self) -> None:
        """Learns that the peer has answered."""
        self._next = self._first
