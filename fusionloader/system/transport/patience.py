"""Timeouts of a peer's answers, and pauses after its failures."""

from __future__ import annotations

from collections import deque

_ANSWERS = 128  # most answer times that are remembered
_FEW = 16  # answers between two computations of the percentile
_TIMES = 10.0
_LONGEST = 60.0  # longest pause in seconds


class AnswerTimes:
    """Computes a timeout: ten times the 95th percentile of the last answer times.

    Attributes:
        deadline: the timeout in seconds.
    """

    def __init__(self, least: float) -> None:
        """``least`` is the first and the lowest timeout in seconds."""
        self._least = least
        self._times: deque[float] = deque(maxlen=_ANSWERS)
        self._count = 0
        self.deadline = least

    def add(self, seconds: float) -> None:
        self._times.append(seconds)
        self._count += 1
        if self._count % _FEW == 0:
            rank = len(self._times) * 95 // 100
            self.deadline = max(self._least, _TIMES * sorted(self._times)[rank])


class Absence:
    """The pause after a peer's failure, which doubles with each further failure."""

    def __init__(self, first: float = 1.0) -> None:
        """``first`` is the first pause in seconds."""
        self._first = first
        self._next = first
        self._until = 0.0

    def is_over(self, now: float) -> bool:
        return now >= self._until

    def failed(self, now: float) -> float:
        """Records a failure; returns the seconds of the pause."""
        seconds = self._next
        self._until = now + seconds
        self._next = min(2 * seconds, _LONGEST)
        return seconds

    def answered(self) -> None:
        """Records an answer, which resets the pause."""
        self._next = self._first
