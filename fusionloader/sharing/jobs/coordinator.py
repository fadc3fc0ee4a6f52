"""The coordinator: has the workers of several jobs prepare each mini-batch once (CoorDL §6.3).

Theory of operation. The coordinator is one small process per user, word and rank. The first job
that finds none starts it; it ends with its last job. It prepares nothing. It owns one queue
(csrc/queue/) in whose control block each worker of each job has a record, and the slots that these
write to.

*Joining.* A loader connects and says what has to be equal in all jobs. It gets descriptors of queue
and slots and a range of worker numbers, and starts its workers on the queue. What workers report
comes to the coordinator: a job that trains, or is stopped, reads nothing.

*An epoch.* Members submit the mini-batches that their samplers give, ``in_flight`` ahead of what
they have taken. The first to submit one has it published, the others' are compared. When it is
complete each member gets its place. When all members have taken and released it, its slots are used
again. ``scheduler/shared_epoch.py`` is the bookkeeping, without clock or process. As long as
nothing of an epoch was recycled, others may join it (``gathering``): those that are about to begin
it are waited for a while. Who comes later prepares alone until its next epoch.

*Failures.* The end of a connection or a pidfd ends a member: nobody waits for it. The end of a
worker's pipe ends a worker: what it held waits again. A stopped worker may wake up and go on
writing, so what it holds is not taken back: its mini-batch is published anew, in other slots, in
its place in the queue, and the old slots rest until the worker has left them. A member that holds
the others up for long leaves (``scheduler/shared_pace.py``); what it looks at stays as it is. If
the coordinator dies, every job has its sampler, its seed and its plan, and goes on alone.
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
from fusionloader.sharing.jobs.group import Group, Refusal
from fusionloader.sharing.jobs.member import GroupMember
from fusionloader.sharing.jobs.staging import Staging
from fusionloader.sharing.jobs.worker_records import WorkerRecords
from fusionloader.system import fd_messages
from fusionloader.system.fd_messages import FdMessage, Fields
from fusionloader.system.local_service import LocalService
from fusionloader.system.shm.objects import SharedMemoryExhausted

_TICK_SECONDS = 0.03  # between looks at what should be finished
_SLEEP_SECONDS = 5.0
_BACKLOG = 128


def main(config: CoordinatorConfig) -> None:
    """Serves until no member is left; returns at once where another one has the address."""
    os.chdir("/")
    listener = fd_messages.listen(config.address, _BACKLOG)
    if listener is not None:
        Coordinator(listener).serve()


class Coordinator(LocalService[GroupMember]):
    """Serves jobs, the pipes of their workers, and the queue."""

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
        """Turns the queue's futex into an event, as a thread."""
        queue, seen = self._staging.queue, 0
        while True:
            queue.sleep(seen, _SLEEP_SECONDS)
            if queue.done_word() != seen:
                seen = queue.done_word()
                os.eventfd_write(self._done_fd, 1)

    def _note_done(self) -> None:
        """Does nothing but wake up: what is done is looked for after each event."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._done_fd)

    def serve(self) -> None:
        """Serves members until there have been none for a while."""
        super().serve()
        self._staging.close()

    # ---- members -------------------------------------------------------------------------------

    def joined(self, peer: GroupMember) -> None:
        """Notes a member, which asks for nothing yet."""
        self._group.members[peer.number] = peer

    def receive(self, peer: GroupMember) -> FdMessage | None:
        """Returns a member's next message, ``None`` at the end of its connection."""
        return payloads.receive(peer.connection)

    def handle(self, peer: GroupMember, message: FdMessage) -> bool:
        """Does what a member asks for; returns whether it could be understood."""
        try:
            self._group.handle(peer, message, time.monotonic())
        except Refusal as refusal:
            peer.reply(refusal.fields)
        except (KeyError, TypeError, ValueError, OSError):
            return False
        return True

    def left(self, peer: GroupMember) -> None:
        """Forgets a member."""
        self._group.remove(peer)

    def refusal(self, why: str) -> Fields:
        """Returns the answer to a job that then prepares its epochs alone."""
        return {"alone": why}

    # ---- between events ------------------------------------------------------------------------

    def advance(self) -> float | None:
        """Publishes, delivers, and looks for those that are late."""
        now = time.monotonic()
        group, staging = self._group, self._staging
        for batch in staging.completed():
            group.find_run(batch).completed(batch)
        group.account(now - self._looked, now)
        self._looked = now
        if now - self._ticked >= _TICK_SECONDS:
            self._ticked = now
            staging.look_for_stopped()
            group.look_for_stopped(now)
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
            group.evict(member, "it reads no messages")
        group.forget(run)
