"""How long to wait before a failed request is sent again: exponential backoff with full jitter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits between attempts.

    Attributes:
        retries: attempts after the first one.
        first: seconds, the longest wait before the second attempt.
        longest: seconds, of any wait.
    """

    retries: int = 5
    first: float = 0.1
    longest: float = 10.0

    def wait(self, failed: int, draw: float) -> float | None:
        """Returns the seconds to wait after ``failed`` attempts, ``None`` to give up.

        Args:
            failed: attempts so far, from 1.
            draw: a random number in [0, 1).
        """
        if failed > self.retries:
            return None
        return float(draw * min(self.longest, self.first * 2.0 ** (failed - 1)))
