"""Balance: claims alone decide who prepares what, with local workers first.

Remote workers claim only while few mini-batches are ready for training, and only as many as come
back in time. The second rule is what keeps a slow network from making training slower. A remote
lease that is out holds its mini-batch up; behind it, local workers fill the mini-batches in flight
and then stop. So answers have to come within a part of the time that these last.
"""

from __future__ import annotations

from dataclasses import dataclass

_LATE = 0.5  # of the time that the mini-batches in flight last
_STALLING = 0.8  # likewise; a lease that alone stops training takes all of it
_FIRST_PAUSE = 50.0  # times the answer that stalled training: 2 % of the time is lost at most
_LONGEST_PAUSE = 800.0


def low_stock(in_flight: int) -> int:
    """Returns the number of ready mini-batches below which remote workers claim.

    Args:
        in_flight: mini-batches at most, ready ones and others. Half of them: fewer let training
            wait where remote workers are far away, more save nothing.
    """
    return max(1, in_flight // 2)


def may_claim(ready: int, low: int, overhead: float | None = None) -> bool:
    """Whether a remote worker may claim a tiny-batch.

    Args:
        ready: mini-batches that training can get now: complete ones behind an incomplete one are
            not.
        low: as ``low_stock`` has it.
        overhead: CPU time of this machine for a remote sample, relative to a local one; ``None``
            before it is known. At 1 or more, remote workers cannot make training faster.
    """
    return ready < low and (overhead is None or overhead < 1)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of a remote worker.

    Attributes:
        seconds: from the request until the samples are in their slot.
        step_seconds: between two batches that training took, waits included: the mean over as many
            as are in flight, since single ones say little.
        in_flight: mini-batches at most.
    """

    seconds: float
    step_seconds: float
    in_flight: int

    @property
    def late(self) -> bool:
        """Whether it took so long that it may soon hold training up."""
        return self.seconds > _LATE * self.in_flight * self.step_seconds

    @property
    def stalling(self) -> bool:
        """Whether it took so long that local workers must have had nothing to do."""
        return self.seconds > _STALLING * self.in_flight * self.step_seconds


class LeaseLimit:
    """How many tiny-batches may be with remote workers: additive increase, multiplicative decrease.

    The limit is halved, at most once in the time of an answer, when answers are late. It grows by
    one for as many answers in time as it allows (Chiu and Jain, "Analysis of the Increase and
    Decrease Algorithms for Congestion Avoidance", 1989), and before the first late one for each
    answer, as TCP's slow start does. Where even one at a time stalls training, requests pause, 50
    times as long as the answer took, then twice as long every time.

    Attributes:
        leases: that may be out at once; a fraction counts towards the next one.
    """

    def __init__(self, most: int, now: float) -> None:
        """Begins with one of ``most``; answers to earlier requests count for nothing."""
        self._most = float(most)
        self.leases = 1.0
        self._starting = True
        self._pause = _FIRST_PAUSE
        self._lowered, self._paused_until = now, now

    def may_ask(self, out: int, now: float) -> bool:
        """Whether one more may be asked for while so many are out."""
        return now >= self._paused_until and out < int(self.leases)

    def answered(self, answer: Answer, now: float) -> None:
        """Learns from an answer that has just come."""
        if now - answer.seconds < self._lowered:
            return  # asked for before the limit was last lowered: nothing new
        if not answer.late:
            grown = self.leases + (1.0 if self._starting else 1 / self.leases)
            self.leases = min(self._most, grown)
            self._pause = _FIRST_PAUSE
            return
        self._starting = False
        if self.leases >= 2:
            self.leases = max(1.0, self.leases / 2)
            self._lowered = now
        else:
            self.leases, self._lowered = 1.0, now
            if not answer.stalling:
                return
            self._paused_until = now + self._pause * answer.seconds
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def allow(self, most: int) -> None:
        """Remote workers have come or gone: as many leases can be out at most."""
        self._most = float(most)
        self.leases = max(1.0, min(self.leases, self._most))
