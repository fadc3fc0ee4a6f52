"""Borrowed workers: other ranks' workers that serve a loader's queue, and the claims they lost."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from fusionloader import _native
from fusionloader.sharing.ranks.membership import Membership

_CHECK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class LostClaim:
    """A tiny-batch that a borrowed worker had claimed when it died."""

    lost: _native.LostTinyBatch
    pid: int


class BorrowedWorkers:
    """The guest slots of a queue."""

    def __init__(self, queue: _native.ManagerQueue, membership: Membership) -> None:
        self._queue = queue
        self._membership = membership
        self._checked = 0.0

    def collect_lost(self, hopeless: Callable[[], list[tuple[int, int]]]) -> list[LostClaim]:
        """Takes back the claims of borrowed workers that have died; checks every 0.1 s at most.

        What ``hopeless`` returns is given up, as by ``take_back``.
        """
        self._membership.poll()
        now = time.monotonic()
        if now - self._checked < _CHECK_SECONDS:
            return []
        self._checked = now
        lost: list[LostClaim] = []
        for guest_slot in self._queue.dead_borrowed_workers():
            pid = self._queue.worker(guest_slot).pid
            claims = self._queue.take_back(guest_slot, hopeless())
            lost += [LostClaim(claim, pid) for claim in claims]
            self._queue.empty_guest_slot(guest_slot)
        return lost

    def kill(self, guest_slot: int, pid: int) -> None:
        """Kills the process in a guest slot, if it is still that one; its rank replaces it."""
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                # What is in the slot and runs now has had the pid since before the handle.
                is_there = self._queue.worker(guest_slot).pid == pid
                if is_there and guest_slot not in self._queue.dead_borrowed_workers():
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)
