"""The two-ended queue of csrc/queue, step by step, without shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from fusionloader.scheduler.threshold import Side


@dataclass(frozen=True, slots=True)
class SimulatedClaim:
    """Tiny-batches ``first .. first + count - 1`` of one mini-batch, claimed by one worker."""

    sequence: int
    first: int
    count: int

    @property
    def tiny_batches(self) -> range:
        """Their numbers."""
        return range(self.first, self.first + self.count)


class _MiniBatch:
    """Head and tail of the unclaimed middle, and the number of tiny-batches not completed."""

    def __init__(self, tiny_batches: int) -> None:
        self.tiny_batches = tiny_batches
        self.head, self.tail = 0, tiny_batches
        self.left = tiny_batches


class TwoEndedQueue:
    """Claims of all workers on the published mini-batches, the oldest unfinished one first."""

    def __init__(self) -> None:
        self._mini_batches: list[_MiniBatch] = []
        self._oldest = 0

    def publish(self, tiny_batches: int) -> None:
        """Adds a mini-batch, whose number is that of the mini-batches before it."""
        self._mini_batches.append(_MiniBatch(tiny_batches))

    def claim(self, side: Side, threshold: int, count: int) -> SimulatedClaim | None:
        """Claims up to ``count`` neighbours at a side's end, ``None`` if none is left for it.

        CPU workers leave the last ``threshold`` tiny-batches of every mini-batch.
        """
        for sequence in range(self._oldest, len(self._mini_batches)):
            batch = self._mini_batches[sequence]
            if side is Side.CPU:
                limit = min(batch.tail, batch.tiny_batches - threshold)
                taken = min(count, limit - batch.head)
                if taken > 0:
                    batch.head += taken
                    return SimulatedClaim(sequence, batch.head - taken, taken)
            else:
                taken = min(count, batch.tail - batch.head)
                if taken > 0:
                    batch.tail -= taken
                    return SimulatedClaim(sequence, batch.tail, taken)
        return None

    def finish(self, claim: SimulatedClaim) -> None:
        """Completes the tiny-batches of a claim."""
        self._mini_batches[claim.sequence].left -= claim.count

    def done(self, sequence: int) -> bool:
        """Whether every tiny-batch of a mini-batch is complete."""
        return self._mini_batches[sequence].left == 0

    def deliver_until(self, sequence: int) -> None:
        """Removes the mini-batches before this one from the queue."""
        self._oldest = sequence
