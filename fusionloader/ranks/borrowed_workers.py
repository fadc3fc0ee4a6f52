"""Borrowed workers: other ranks' workers that serve a loader's queue, and the claims they lost."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fusionloader import _native
from fusionloader.ranks.membership import Membership

_CHECK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class LostClaim:
    """A tiny-batch that a borrowed worker had claimed when it died."""

    sequence: int
    tiny_batch: int
    pid: int


class BorrowedWorkers:
    """The guest slots of a queue."""

    def __init__(self, queue: _native.ManagerQueue, membership: Membership) -> None:
        self._queue = queue
        self._membership = membership
        self._checked = 0.0

    def collect_lost(self) -> list[LostClaim]:
        """Takes back the claims of borrowed workers that have died; checks every 0.1 s at most."""
        self._membership.poll()
        now = time.monotonic()
        if now - self._checked < _CHECK_SECONDS:
            return []
        self._checked = now
        lost: list[LostClaim] = []
        for guest_slot in self._queue.dead_borrowed_workers():
            pid = self._queue.worker(guest_slot).pid
            for claim in self._queue.take_back(guest_slot):
                lost.append(LostClaim(claim.sequence, claim.tiny_batch, pid))
            self._queue.empty_guest_slot(guest_slot)
        return lost
