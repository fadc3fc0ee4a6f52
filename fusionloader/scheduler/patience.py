"""How long training waits for memory that it asks back before it kills who has it."""

from __future__ import annotations

_MOST = 8  # times what it begins with


class Patience:
    """Grows with the time that returning memory takes, up to eight times what it begins with.

    Waiting costs training milliseconds, killing costs it the worker for the seconds of its start.
    It never shrinks: where memory is returned sooner, nothing is waited for.

    Attributes:
        seconds: to wait now.
    """

    def __init__(self, seconds: float) -> None:
        """Begins with so many seconds."""
        self.seconds = seconds
        self._most = _MOST * seconds

    def returned(self, seconds: float) -> None:
        """Learns that returning everything took so long: it may take twice that."""
        self.seconds = min(max(self.seconds, 2 * seconds), self._most)

    def overdue(self) -> bool:
        """Learns that the time did not suffice; returns whether there is more."""
        if self.seconds >= self._most:
            return False
        self.seconds = min(2 * self.seconds, self._most)
        return True
