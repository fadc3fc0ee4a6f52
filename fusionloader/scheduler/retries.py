"""When a failed request is sent again, and when a late one is sent a second time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_FEWEST = 20  # response times before any request is late
_PERCENTILE = 0.95
_MOST_SAVED = 4.0  # second requests


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits between attempts: exponential backoff with full jitter.

    Attributes:
        retries: number of attempts after the first one.
        first: maximum wait before the second attempt, in seconds.
        longest: maximum of any wait, in seconds.
    """

    retries: int = 5
    first: float = 0.1
    longest: float = 10.0

    def wait(self, failed: int, draw: float) -> float | None:
        """Returns the seconds to wait after ``failed`` attempts, ``None`` to give up.

        Args:
            failed: number of attempts so far, at least 1.
            draw: a random number in [0, 1).
        """
        if failed > self.retries:
            return None
        return float(draw * min(self.longest, self.first * 2.0 ** (failed - 1)))


class Hedging:
    """Hedged requests: one whose answer is late is sent a second time.

    Dean and Barroso, "The Tail at Scale" (CACM 56(2), 2013): an answer is late after the 95th
    percentile of response times, so that about 5 % more requests are sent.

    Attributes:
        requests: number of requests, without the second ones.
        hedged: number of second requests.
    """

    def __init__(self, share: float = 0.05, window: int = 256) -> None:
        """Hedges at most ``share`` of requests, by the response times of the last ``window``."""
        self.requests = self.hedged = 0
        self._share = share
        self._saved = 1.0
        self._taken: deque[float] = deque(maxlen=window)

    def sent(self) -> None:
        self.requests += 1
        self._saved = min(self._saved + self._share, _MOST_SAVED)

    def answered(self, seconds: float) -> None:
        """Adds the seconds from a request to its first answer."""
        self._taken.append(seconds)

    def late_after(self) -> float | None:
        """Returns the seconds after which an answer is late; ``None`` while unknown."""
        if len(self._taken) < _FEWEST:
            return None
        return sorted(self._taken)[int(_PERCENTILE * len(self._taken))]

    def allow(self) -> bool:
        """Whether a late request may be sent again now; if so, counts it."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        self.hedged += 1
        return True
