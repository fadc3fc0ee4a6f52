"""How long the jobs of a shared preparation wait for one another."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

_SHORTEST_STALL = 0.06  # seconds that others wait, at least, before a member leaves
_STALLED = 2.0  # times its usual interval, without a mini-batch taken
_WINDOW = 32  # mini-batches over which a member must not hold others up for
_MOST_HELD_UP = 0.5  # of the time
_SHORTEST_GATHERING = 2.0
_OF_LAST_EPOCH = 0.5


@dataclass(frozen=True, slots=True)
class Pace:
    """How a member holds others up; seconds.

    Attributes:
        stalled: that others wait for it now, without a pause.
        since_take: since it has taken a mini-batch.
        usual: between two that it takes; ``None`` before it has taken a few.
        share: of the time of its last 32 mini-batches, how much of it others have waited for it;
            ``None`` before there were as many.
        waiting: how many members wait.
        blocking: how many they wait for, this one included.
    """

    stalled: float
    since_take: float
    usual: float | None
    share: float | None
    waiting: int
    blocking: int


def leaves(pace: Pace) -> str | None:
    """Returns why a member that holds others up has to leave, ``None`` where it may stay.

    Whoever has stopped leaves soon. Whoever is slow sets the pace, unless others wait for more than
    half of the time, and no fewer wait than are slow.
    """
    if not pace.waiting:
        return None
    expected = 0.0 if pace.usual is None else _STALLED * pace.usual
    if pace.stalled >= _SHORTEST_STALL and pace.since_take >= max(_SHORTEST_STALL, expected):
        return f"it took no mini-batch for {pace.since_take:.2f} s while others waited for it"
    if pace.share is not None and pace.share > _MOST_HELD_UP and pace.waiting >= pace.blocking:
        return (
            f"others waited for it {pace.share:.0%} of the time over {_WINDOW} of its mini-batches"
        )
    return None


class TakeClock:
    """When a member has taken mini-batches, and how long others have waited for it.

    Attributes:
        held_up: seconds that others have waited for it.
        last: when it took one, or came.
    """

    def __init__(self, now: float) -> None:
        self.held_up = 0.0
        self.last = now
        self.stalled_since: float | None = None
        self._takes: deque[tuple[float, float]] = deque(maxlen=_WINDOW + 1)

    def taken(self, now: float) -> None:
        """It took a mini-batch."""
        self.last, self.stalled_since = now, None
        self._takes.append((now, self.held_up))

    def holds_up(self, seconds: float, now: float) -> None:
        """Others have waited for it so long, until now."""
        self.held_up += seconds
        if self.stalled_since is None:
            self.stalled_since = now - seconds

    def pace(self, now: float, waiting: int, blocking: int) -> Pace:
        """Returns how it holds others up."""
        stalled = 0.0 if self.stalled_since is None else now - self.stalled_since
        return Pace(stalled, now - self.last, self.usual, self._share(now), waiting, blocking)

    @property
    def usual(self) -> float | None:
        """Seconds between two that it takes; ``None`` before it has taken a few."""
        times = [when for when, _ in self._takes]
        gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
        return statistics.median(gaps) if len(gaps) >= 3 else None

    def _share(self, now: float) -> float | None:
        if len(self._takes) <= _WINDOW:
            return None
        began, before = self._takes[0]
        return (self.held_up - before) / max(now - began, 1e-9)


def keeps_gathering(waited: float, last_epoch: float | None, coming: Sequence[float]) -> bool:
    """Whether an epoch that could go on waits for members that are about to begin it.

    Args:
        waited: seconds since the epoch was opened.
        last_epoch: seconds that the epoch before took; ``None`` for the first.
        coming: seconds until each of the others is expected.
    """
    limit = max(_SHORTEST_GATHERING, _OF_LAST_EPOCH * (last_epoch or 0.0))
    return any(waited + seconds <= limit for seconds in coming)
