"""How long the jobs of a shared preparation wait for one another."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

_SHORTEST_STALL = 0.25  # seconds that others wait at least before a member has to leave
_STALLED = 3.0  # times the usual time between two takes, without one
_UNKNOWN_STALL = 1.0  # seconds without a take of a member whose usual time is unknown
_WINDOW = 32  # mini-batches over which the time that others wait is measured
_MOST_HELD_UP = 0.5  # fraction of that time
_SHORTEST_GATHERING = 2.0  # seconds
BETWEEN_SECONDS = 2.0  # between two epochs of a member that goes on
_OF_LAST_EPOCH = 1.0  # times the duration of the epoch before
_IF_DOUBTFUL = 0.5  # the same, for a member that may come late each time, or not at all
_SPEED_UP = 2.0  # of a member that has the processors for itself while the others wait for it
_STARVED = 0.5  # fraction of an epoch from which on it pays to wait for members that are far behind
_CATCHES_UP = (
    0.5  # epochs that a member makes in the time of one of the others, if they wait for it
)


class LastEpoch(NamedTuple):
    """The epoch before.

    Attributes:
        seconds: duration without waits for members, 0 if unknown.
        starved: fraction of it in which members waited for samples.
    """

    seconds: float
    starved: float


FIRST = LastEpoch(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Pace:
    """How much a member delays the others; times are in seconds.

    Attributes:
        stalled: time that others have been waiting for it without interruption.
        since_take: time since it took a mini-batch.
        usual: median time between two mini-batches that it takes; ``None`` before it took a few.
        share: fraction of the time of its last 32 mini-batches that others waited for it; ``None``
            before it took as many.
        waiting: number of members that wait.
        blocking: number of members that they wait for, including this one.
    """

    stalled: float
    since_take: float
    usual: float | None
    share: float | None
    waiting: int
    blocking: int


def leaves(pace: Pace) -> str | None:
    """Returns why a member that delays others has to leave, ``None`` if it may stay.

    A member that takes nothing has to leave soon. A slow member may stay, unless others wait for it
    more than half of the time, and at least as many members wait as are slow.
    """
    if not pace.waiting:
        return None
    expected = _UNKNOWN_STALL if pace.usual is None else _STALLED * pace.usual
    if pace.stalled >= _SHORTEST_STALL and pace.since_take >= max(_SHORTEST_STALL, expected):
        return f"it took no mini-batch for {pace.since_take:.2f} s while others waited for it"
    if pace.share is not None and pace.share > _MOST_HELD_UP and pace.waiting >= pace.blocking:
        return (
            f"others waited for it {pace.share:.0%} of the time over {_WINDOW} of its mini-batches"
        )
    return None


class TakeClock:
    """When a member took mini-batches, and how long others waited for it.

    Attributes:
        held_up: seconds that others have waited for it.
        last: time of its last take, or of its start.
        stalled_since: time since which others wait for it; ``None`` if they do not.
    """

    def __init__(self, now: float, usual: float | None = None) -> None:
        """``usual``: median seconds between two takes in an earlier epoch."""
        self._earlier = usual
        self.held_up = 0.0
        self.last = now
        self.stalled_since: float | None = None
        self._takes: deque[tuple[float, float]] = deque(maxlen=_WINDOW + 1)

    def taken(self, now: float) -> None:
        self.last, self.stalled_since = now, None
        self._takes.append((now, self.held_up))

    def holds_up(self, seconds: float, now: float) -> None:
        """Adds ``seconds``, up to ``now``, that others have waited for it."""
        self.held_up += seconds
        if self.stalled_since is None:
            self.stalled_since = now - seconds

    def pace(self, now: float, waiting: int, blocking: int) -> Pace:
        stalled = 0.0 if self.stalled_since is None else now - self.stalled_since
        return Pace(stalled, now - self.last, self.usual, self._share(now), waiting, blocking)

    @property
    def usual(self) -> float | None:
        """Median seconds between two mini-batches that a member takes; ``None`` before four.

        Before four of this epoch it is that of the epoch before.
        """
        times = [when for when, _ in self._takes]
        gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
        return statistics.median(gaps) if len(gaps) >= 3 else self._earlier

    def _share(self, now: float) -> float | None:
        if len(self._takes) <= _WINDOW:
            return None
        began, before = self._takes[0]
        return (self.held_up - before) / max(now - began, 1e-9)


def waits_for(seconds: float, *, waited: float, last: LastEpoch, is_doubtful: bool) -> bool:
    """Whether an epoch that could go on waits for a member that has not begun it yet.

    A member that started late is in step from then on, so waiting for it once costs less than
    preparing everything twice. One that is far behind is waited for in each epoch, as long as that
    one took, if the members lack samples: meanwhile all workers make those of the member. A member
    that was evicted is slow, and would be late each time. One that has begun no epoch after its
    last may have ended its training.

    Args:
        seconds: expected seconds until the member begins the epoch, at its present pace.
        waited: seconds that the epoch has waited for members.
        last: the epoch before.
        is_doubtful: whether the member had to leave an epoch, and has shared no whole one since,
            or has begun none after its last one.
    """
    if is_doubtful:
        return waited + seconds <= max(_SHORTEST_GATHERING, _IF_DOUBTFUL * last.seconds)
    limit = max(_SHORTEST_GATHERING, _OF_LAST_EPOCH * last.seconds)
    is_near = waited + seconds / _SPEED_UP <= limit
    return waited <= limit and (is_near or last.starved >= _STARVED)


def is_slow(made: float | None, *, waited: float, last: LastEpoch) -> bool:
    """Whether a member that an epoch has waited for in vain does not catch up.

    Args:
        made: epochs that it has made meanwhile, ``None`` if unknown.
        waited: seconds that the epoch has waited.
        last: the epoch before.
    """
    if made is None or last.seconds == 0:
        return False
    return made * last.seconds < _CATCHES_UP * waited
