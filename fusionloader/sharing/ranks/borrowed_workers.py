"""Workers shared with other ranks: the offer of a queue to them, and the workers borrowed."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from typing import Any

from fusionloader import _native
from fusionloader._native import WorkerActivity
from fusionloader.engine.manager.participant import Handle, Hub, Participant
from fusionloader.engine.manager.publications import Publications
from fusionloader.observe.trace.recorder import Recorder
from fusionloader.sharing.ranks.membership import GUEST_SLOTS, Membership
from fusionloader.sharing.ranks.sharing_offer import SharingOffer, SharingOffers
from fusionloader.workers.worker_set import WorkerSet

log = logging.getLogger("fusionloader.manager")

_CHECK_SECONDS = 0.1


class BorrowedWorkers(Participant):
    """Offers a queue to the global manager, and watches the workers in its guest slots."""

    places = GUEST_SLOTS
    are_guests = True

    def __init__(self, offers: SharingOffers, offer: SharingOffer) -> None:
        self._membership = Membership(offers.ranks, offers.loader)
        self._offer = offer
        self.event_fd = self._membership.event_fd
        self._checked = 0.0
        self._view: _native.MemberView | None = None
        self._away: set[int] = set()  # workers that are at other ranks

    def start(self, hub: Hub) -> None:
        self._hub, self._queue = hub, hub.queue

    def workers_started(self, workers: WorkerSet) -> None:
        """Offers the queue to other ranks."""
        self._membership.join(self._offer, self._hub.control_fd, self._hub.data_fd)

    def look(self, handle: Handle, publications: Publications[Any]) -> None:
        """Takes back the claims of borrowed workers that have died; looks every 0.1 s at most."""
        self._membership.poll()
        now = time.monotonic()
        if now - self._checked < _CHECK_SECONDS:
            return
        self._checked = now
        for number in self._queue.dead_borrowed_workers():
            pid = self._queue.worker(number).pid
            publications.give_back(number, pid, "of another rank died")
            self._queue.empty_guest_slot(number)

    def kill(self, number: int, pid: int, why: str) -> None:
        """Kills the process in a guest slot, if it is still that one; its rank replaces it."""
        is_there = self._queue.worker(number).pid == pid
        if is_there and number not in self._queue.dead_borrowed_workers():
            log.warning("worker (pid %d) of another rank %s; it is killed", pid, why)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def trace_began(self) -> None:
        self._view = _native.MemberView(self._hub.control_fd, self._hub.data_fd)
        self._away.clear()

    def trace(self, recorder: Recorder, thoroughly: bool) -> None:
        """Records which of the loader's workers go to other ranks, and which come back."""
        if self._view is None or not thoroughly:
            return
        for number, worker in enumerate(self._view.workers()):
            if worker.activity is WorkerActivity.BORROWED and number not in self._away:
                recorder.instant("shared", f"worker {number} works for another rank", number)
                self._away.add(number)
            elif worker.activity is WorkerActivity.HOME and number in self._away:
                recorder.instant("shared", f"worker {number} is back", number)
                self._away.remove(number)

    def end(self) -> None:
        self._membership.close()
