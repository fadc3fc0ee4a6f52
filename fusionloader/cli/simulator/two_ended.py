"""The two-ended queue of csrc/queue, step by step, without shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fusionloader.scheduler.threshold import Side


class TinyState(Enum):
    """State of a tiny-batch."""

    WAITING = 1
    ACTIVE = 2
    COMPLETED = 3


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
    """Head and tail of the unclaimed middle, and each tiny-batch's state and worker."""

    def __init__(self, tiny_batches: int) -> None:
        self.head, self.tail = 0, tiny_batches
        self.states = [TinyState.WAITING] * tiny_batches
        self.workers: list[int | None] = [None] * tiny_batches
        self.left = tiny_batches  # not completed
        self.returned = False  # a dead worker's claims were taken back: look through the states


class TwoEndedQueue:
    """Claims of all workers on the published mini-batches, the oldest unfinished one first."""

    def __init__(self) -> None:
        self._mini_batches: list[_MiniBatch] = []
        self._oldest = 0

    def publish(self, tiny_batches: int) -> int:
        """Adds a mini-batch; returns its number."""
        self._mini_batches.append(_MiniBatch(tiny_batches))
        return len(self._mini_batches) - 1

    def claim(self, worker: int, side: Side, threshold: int, count: int) -> SimulatedClaim | None:
        """Claims up to ``count`` neighbours at the worker's end, ``None`` if none is left for it.

        CPU workers leave the last ``threshold`` tiny-batches of every mini-batch.
        """
        for sequence in range(self._oldest, len(self._mini_batches)):
            found = self._claim_from(sequence, side, threshold, count)
            if found is not None:
                batch = self._mini_batches[sequence]
                for tiny_batch in found.tiny_batches:
                    batch.states[tiny_batch] = TinyState.ACTIVE
                    batch.workers[tiny_batch] = worker
                return found
        return None

    def _claim_from(
        self, sequence: int, side: Side, threshold: int, count: int
    ) -> SimulatedClaim | None:
        batch = self._mini_batches[sequence]
        if side is Side.CPU:
            limit = min(batch.tail, len(batch.states) - threshold)
            taken = min(count, limit - batch.head)
            if taken > 0:
                batch.head += taken
                return SimulatedClaim(sequence, batch.head - taken, taken)
        else:
            taken = min(count, batch.tail - batch.head)
            if taken > 0:
                batch.tail -= taken
                return SimulatedClaim(sequence, batch.tail, taken)
        # A returned tiny-batch may be one that the GPU worker could not process: CPU workers only.
        if batch.returned and side is Side.CPU:
            for tiny_batch, state in enumerate(batch.states):
                outside = not batch.head <= tiny_batch < batch.tail
                if outside and state is TinyState.WAITING:
                    return SimulatedClaim(sequence, tiny_batch, 1)
        return None

    def finish(self, worker: int, sequence: int, tiny_batch: int) -> bool:
        """Completes a tiny-batch; ``False`` if the worker's claim on it was taken back."""
        batch = self._mini_batches[sequence]
        if batch.workers[tiny_batch] != worker:
            return False
        batch.states[tiny_batch] = TinyState.COMPLETED
        batch.workers[tiny_batch] = None
        batch.left -= 1
        return True

    def done(self, sequence: int) -> bool:
        """Whether every tiny-batch of a mini-batch is complete."""
        return self._mini_batches[sequence].left == 0

    def deliver_until(self, sequence: int) -> None:
        """Removes the mini-batches before this one from the queue."""
        self._oldest = sequence

    def take_back(self, worker: int) -> list[tuple[int, int]]:
        """Takes a dead worker's claims back; returns them as (mini-batch, tiny-batch)."""
        lost = []
        for sequence in range(self._oldest, len(self._mini_batches)):
            batch = self._mini_batches[sequence]
            for tiny_batch, claimant in enumerate(batch.workers):
                if claimant == worker:
                    batch.states[tiny_batch] = TinyState.WAITING
                    batch.workers[tiny_batch] = None
                    lost.append((sequence, tiny_batch))
            batch.returned = True
        return lost
