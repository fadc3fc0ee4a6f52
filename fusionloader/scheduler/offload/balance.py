"""Balance: claims alone decide which workers prepare what, local workers first.

Remote workers claim only while few mini-batches are ready for training, and only as many
tiny-batches as they return in time. The second rule keeps a slow network from slowing training
down. A tiny-batch leased to a remote worker delays its mini-batch. Meanwhile local workers complete
the other mini-batches in flight, and then stop. So an answer has to arrive within a fraction of the
time that the mini-batches in flight last.
"""

from __future__ import annotations

from dataclasses import dataclass

_LATE = 0.5  # fraction of the time that the mini-batches in flight last
_STALLING = 0.8  # the same; a lease that alone stops training takes all of it
_FIRST_PAUSE = 50.0  # times the answer that stalled training: costs at most 2 % of the time
_LONGEST_PAUSE = 800.0


def low_stock(in_flight: int) -> int:
    """Returns the number of ready mini-batches below which remote workers claim.

    It is half of ``in_flight``, the maximum number of mini-batches in flight, ready or not. With
    less, training waits where remote workers are far away; more gains nothing.
    """
    return max(1, in_flight // 2)


def may_claim(ready: int, low: int, overhead: float | None = None) -> bool:
    """Whether a remote worker may claim a tiny-batch.

    Args:
        ready: number of mini-batches that training can get now, without complete ones behind an
            incomplete one.
        low: result of ``low_stock``.
        overhead: CPU time of this machine per remote sample, relative to a local one; ``None``
            before it is known. At 1 or more, remote workers cannot make training faster.
    """
    return ready < low and (overhead is None or overhead < 1)


@dataclass(frozen=True, slots=True)
class Answer:
    """Timing of an answer from a remote worker.

    Attributes:
        seconds: time from the request until the samples are in their slot.
        step_seconds: mean time between two batches that training took, waits included, over as many
            batches as are in flight.
        in_flight: maximum number of mini-batches in flight.
    """

    seconds: float
    step_seconds: float
    in_flight: int

    @property
    def late(self) -> bool:
        """Whether answers are so slow that they may soon delay training."""
        return self.seconds > _LATE * self.in_flight * self.step_seconds

    @property
    def stalling(self) -> bool:
        """Whether local workers must have been idle before the answer came."""
        return self.seconds > _STALLING * self.in_flight * self.step_seconds


class LeaseLimit:
    """Limit of leased tiny-batches by additive increase and multiplicative decrease.

    Chiu and Jain, "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance"
    (1989). The limit is halved when answers are late, at most once in the time of an answer. It
    grows by one after as many timely answers as it allows; before the first late answer it grows by
    one with each, as in TCP's slow start. Where even a single lease stalls training, requests pause
    for 50 times the time of the answer, and twice as long each further time.

    Attributes:
        leases: maximum number of tiny-batches that remote workers have at once; the fraction counts
            towards the next one.
    """

    def __init__(self, most: int, now: float) -> None:
        """Starts with one lease of at most ``most``; ignores answers to requests before ``now``."""
        self._most = float(most)
        self.leases = 1.0
        self._starting = True
        self._pause = _FIRST_PAUSE
        self._lowered, self._paused_until = now, now

    def may_request(self, out: int, now: float) -> bool:
        """Whether one more tiny-batch may be leased while ``out`` are."""
        return now >= self._paused_until and out < int(self.leases)

    def answered(self, answer: Answer, now: float) -> None:
        if now - answer.seconds < self._lowered:
            return  # requested before the limit was last lowered: no new information
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
        """Sets the maximum number of leases, after remote workers have come or gone."""
        self._most = float(most)
        self.leases = max(1.0, min(self.leases, self._most))
