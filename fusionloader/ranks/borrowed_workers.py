"""Workers of other ranks that are at a loader's mini-batches: what the dead among them held."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fusionloader import _native
from fusionloader.ranks.membership import Membership

_CHECK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Lost:
    """A tiny-batch that a borrowed worker had claimed when it died."""

    sequence: int
    tiny_batch: int
    pid: int


class BorrowedWorkers:
    """The guest slots of a queue, whose records begin at ``first``."""

    def __init__(self, queue: _native.ManagerQueue, membership: Membership, first: int) -> None:
        self._queue = queue
        self._membership = membership
        self._first = first
        self._checked = 0.0

    def look(self) -> list[Lost]:
        """Takes back what those held that have died, at most every 0.1 s."""
        self._membership.look()
        now = time.monotonic()
        if now - self._checked < _CHECK_SECONDS:
            return []
        self._checked = now
        lost = []
        for guest_slot in self._queue.dead_borrowed_workers():
            pid = self._queue.worker(guest_slot).pid
            for held in self._queue.take_back(guest_slot):
                lost.append(Lost(held.sequence, held.tiny_batch, pid))
            self._queue.empty_guest_slot(guest_slot)
        return lost

    @property
    def samples(self) -> int:
        """Samples that they have made."""
        return sum(worker.samples for worker in self._queue.workers(self._first))
