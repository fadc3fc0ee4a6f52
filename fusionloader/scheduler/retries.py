"""When a request is sent a second time, because the first answer is late.

"Hedged requests" of Dean and Barroso, The Tail at Scale (CACM 56(2), 2013): past the 95th
percentile of what requests have taken, which costs about 5 % more of them. Without clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_FEWEST = 20  # observations before anything is late
_PERCENTILE = 0.95
_MOST_SAVED = 4.0


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


class Hedging:
    """Decides by what the last requests have taken, and by how many were hedged.

    Attributes:
        requests: that were sent first.
        hedged: that were sent a second time.
    """

    def __init__(self, share: float = 0.05, window: int = 256) -> None:
        """``share`` of requests are hedged at most; the last ``window`` say what is late."""
        self.requests = self.hedged = 0
        self._share = share
        self._saved = 1.0
        self._taken: deque[float] = deque(maxlen=window)

    def sent(self) -> None:
        """Notes a request."""
        self.requests += 1
        self._saved = min(self._saved + self._share, _MOST_SAVED)

    def answered(self, seconds: float) -> None:
        """Notes how long a request took until its first answer."""
        self._taken.append(seconds)

    def late_after(self) -> float | None:
        """Returns the seconds after which a request is late; ``None`` while that is unknown."""
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
