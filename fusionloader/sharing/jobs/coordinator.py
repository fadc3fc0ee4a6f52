"""The coordinator: has the workers of several jobs prepare each mini-batch once (CoorDL §6.3).

Theory of operation. The coordinator is one small process per user, word and rank. The first job
that finds none starts it, and it ends with its last job. It prepares no samples. It owns one queue
(csrc/queue/), whose control block has a record for each worker of each job, and the slots that
these workers write to.

*Joining.* A loader connects and sends what has to be equal in all jobs. It receives the descriptors
of queue and slots and a range of worker numbers, and starts its workers on the queue. Workers
report to the coordinator, because a job that trains or is stopped reads no messages.

*An epoch.* Members submit the mini-batches that their samplers give, ``in_flight`` ahead of those
that they have taken. The first submission of a mini-batch is published, later ones are compared
with it. When it is complete, each member receives its location. When all members have taken and
released it, its slots are reused. ``scheduler/shared_epoch.py`` does the bookkeeping, without clock
or process. Jobs may join an epoch until its first mini-batch is recycled (``gathering``). Recycling
waits for a while if members are about to begin the epoch. A job that comes later, or had to leave,
has a run of its own, which the workers of all jobs serve as they serve the others. Workers make
mini-batches of user code whole, and ask for slots once they know how large these are.

*Failures.* A member has ended when its connection or, as a pidfd shows, its process has ended. The
others no longer wait for it. A worker has ended when its pipe has ended. Its tiny-batches wait
again. A stopped worker may resume and go on writing, so its tiny-batches are not taken back: the
mini-batch is published again, in other slots and at the same place in the queue, and the old slots
are quarantined until the worker no longer holds them. A member that delays the others for long is
evicted (``scheduler/shared_pace.py``); batches that it references stay as they are. If the
coordinator dies, every job goes on alone with its own sampler, seed and plan.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

from fusionloader.sharing.jobs import payloads
from fusionloader.sharing.jobs.address import CoordinatorConfig
from fusionloader.sharing.jobs.epoch_run import EpochRun
from fusionloader.sharing.jobs.group import LOST, Group, Refusal
from fusionloader.sharing.jobs.member import GroupMember
from fusionloader.sharing.jobs.staging import Staging
from fusionloader.sharing.jobs.worker_records import WorkerRecords
from fusionloader.system import fd_messages
from fusionloader.system.fd_messages import FdMessage, Fields
from fusionloader.system.limits.open_files import allow_many_files
from fusionloader.system.local_service import LocalService
from fusionloader.system.shm.objects import SharedMemoryExhausted

_TICK_SECONDS = 0.03  # between checks for stopped workers and slow members
_SLEEP_SECONDS = 5.0
_BACKLOG = 128


def main(config: CoordinatorConfig) -> None:
    """Serves until no member is left; returns at once if another coordinator has the address."""
    os.chdir("/")
    allow_many_files()  # two for each job, and one for each of its workers
    listener = fd_messages.listen(config.address, _BACKLOG)
    if listener is not None:
        Coordinator(listener).serve()


class Coordinator(LocalService[GroupMember]):
    """The event loop over jobs, the pipes of their workers, and the queue."""

    name = "the coordinator of shared preparation"
    first_seconds = 20.0
    last_seconds = 0.3

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(listener, GroupMember)
        workers = WorkerRecords(self.watch, self.unwatch)
        self._staging = Staging(workers)
        self._group = Group(self._staging, workers)
        self._looked = self._ticked = time.monotonic()
        self._done_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.watch(self._done_fd, self._note_done)
        threading.Thread(target=self._watch_queue, daemon=True).start()

    def _watch_queue(self) -> None:
        """Turns the queue's futex into events of an eventfd; runs in a thread."""
        queue, seen = self._staging.queue, 0
        while True:
            queue.sleep(seen, _SLEEP_SECONDS)
            if queue.done_word() != seen:
                seen = queue.done_word()
                os.eventfd_write(self._done_fd, 1)

    def _note_done(self) -> None:
        """Clears the eventfd; ``advance`` finds complete mini-batches after every event."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._done_fd)

    def serve(self) -> None:
        super().serve()
        self._staging.close()

    # ---- members -------------------------------------------------------------------------------

    def joined(self, peer: GroupMember) -> None:
        self._group.members[peer.number] = peer

    def receive(self, peer: GroupMember) -> FdMessage | None:
        return payloads.receive(peer.connection)

    def handle(self, peer: GroupMember, message: FdMessage) -> bool:
        try:
            self._group.handle(peer, message, time.monotonic())
        except Refusal as refusal:
            peer.reply(refusal.fields)
        except (KeyError, TypeError, ValueError, OSError):
            return False
        return True

    def left(self, peer: GroupMember) -> None:
        self._group.remove(peer)

    def refusal(self, why: str) -> Fields:
        return {"alone": why}

    # ---- between events ------------------------------------------------------------------------

    def advance(self) -> float | None:
        now = time.monotonic()
        group, staging = self._group, self._staging
        for batch in staging.completed():
            group.find_run(batch).completed(batch)
        group.account(now - self._looked, now)
        self._looked = now
        if now - self._ticked >= _TICK_SECONDS:
            self._ticked = now
            group.send_unsent()
            staging.look_for_stopped()
            group.look_for_stopped(now)
            group.look_for_lacking()
        for run in group.runs():
            self._advance_run(run, now)
        return _TICK_SECONDS if staging.busy or group.needs_ticks else None

    def _advance_run(self, run: EpochRun, now: float) -> None:
        group = self._group
        group.consider_gathering(run, now)
        try:
            run.advance(group.staging_limit(run))
        except SharedMemoryExhausted as error:
            group.evict_all(run, str(error))
        for member in run.deliver(group.members):
            group.evict(member, LOST)
        group.forget(run)
