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
import select
import socket
import threading
import time

from fusionloader.sharing.jobs import payloads
from fusionloader.sharing.jobs.address import CoordinatorConfig
from fusionloader.sharing.jobs.epoch_run import EpochRun
from fusionloader.sharing.jobs.group import Group, Refusal
from fusionloader.sharing.jobs.member import GroupMember
from fusionloader.sharing.jobs.staging import Staging
from fusionloader.sharing.jobs.worker_records import WorkerRecords, has_ended
from fusionloader.system import fd_messages
from fusionloader.system.fd_messages import FdMessage
from fusionloader.system.shm.objects import SharedMemoryExhausted

_FIRST_SECONDS = 20.0  # how long to wait for the first member
_LAST_SECONDS = 0.3  # how long to wait after the last one
_TICK_SECONDS = 0.03  # between looks at what should be finished
_SLEEP_SECONDS = 5.0
_BACKLOG = 128


def main(config: CoordinatorConfig) -> None:
    """Serves until no member is left; returns at once where another one has the address."""
    os.chdir("/")
    listener = fd_messages.listen(config.address, _BACKLOG)
    if listener is not None:
        Coordinator(listener).serve()


class Coordinator:
    """The event loop over the connections of jobs, the pipes of workers, and the queue."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._poll = select.epoll()
        self._poll.register(listener, select.EPOLLIN)
        self._workers = WorkerRecords(self._poll)
        self._staging = Staging(self._workers)
        self._group = Group(self._staging, self._workers)
        self._by_fd: dict[int, GroupMember] = {}
        self._end_at = time.monotonic() + _FIRST_SECONDS
        self._looked = self._ticked = time.monotonic()
        self._done_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._done_fd, select.EPOLLIN)
        threading.Thread(target=self._watch_queue, daemon=True).start()

    def _watch_queue(self) -> None:
        """Turns the queue's futex into an event, as a thread."""
        queue, seen = self._staging.queue, 0
        while True:
            queue.sleep(seen, _SLEEP_SECONDS)
            if queue.done_word() != seen:
                seen = queue.done_word()
                os.eventfd_write(self._done_fd, 1)

    def serve(self) -> None:
        """Serves members until there have been none for a while."""
        while self._by_fd or time.monotonic() < self._end_at:
            for fd, _ in self._poll.poll(self._timeout()):
                self._handle_event(fd)
            self._advance()
        self._staging.close()

    def _timeout(self) -> float | None:
        if self._staging.busy or self._group.waits:
            return _TICK_SECONDS
        return None if self._by_fd else max(0.0, self._end_at - time.monotonic())

    # ---- events --------------------------------------------------------------------------------

    def _handle_event(self, fd: int) -> None:
        if fd == self._done_fd:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(fd)
        elif fd == self._listener.fileno():
            self._accept()
        elif fd in self._by_fd:
            self._receive(self._by_fd[fd])
        elif (record := self._workers.of_descriptor(fd)) is not None:
            self._staging.receive()
            if has_ended(record):
                self._staging.bury(record)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        if not fd_messages.is_same_user(connection):
            connection.close()
            return
        connection.setblocking(False)
        member = self._group.newcomer(connection)
        for fd in (connection.fileno(), member.pid_fd):
            if fd >= 0:
                self._poll.register(fd, select.EPOLLIN)
                self._by_fd[fd] = member

    def _receive(self, member: GroupMember) -> None:
        while True:
            try:
                message = payloads.receive(member.connection)
            except BlockingIOError:
                break
            if message is None:
                self._remove(member)
                return
            if not self._handle(member, message):
                self._remove(member)
                return
        if member.has_ended():
            self._remove(member)

    def _handle(self, member: GroupMember, message: FdMessage) -> bool:
        """Returns whether the message could be understood."""
        try:
            self._group.handle(member, message, time.monotonic())
        except Refusal as refusal:
            member.send(refusal.fields)
        except (KeyError, TypeError, ValueError, OSError):
            return False
        finally:
            message.close()
        return True

    def _remove(self, member: GroupMember) -> None:
        for fd in (member.connection.fileno(), member.pid_fd):
            if self._by_fd.pop(fd, None) is not None:
                self._poll.unregister(fd)
        self._group.remove(member)
        if not self._by_fd:
            self._end_at = time.monotonic() + _LAST_SECONDS

    # ---- between events ------------------------------------------------------------------------

    def _advance(self) -> None:
        now = time.monotonic()
        group, staging = self._group, self._staging
        for batch in staging.completed():
            group.run_of(batch).completed(batch)
        group.account(now - self._looked, now)
        self._looked = now
        if now - self._ticked >= _TICK_SECONDS:
            self._ticked = now
            staging.look_for_stopped()
            group.look_for_stopped(now)
        for run in group.runs():
            self._advance_run(run, now)

    def _advance_run(self, run: EpochRun, now: float) -> None:
        group = self._group
        group.consider_gathering(run, now)
        try:
            run.advance(group.staging_of(run))
        except SharedMemoryExhausted as error:
            group.dissolve(run, str(error))
        for member in run.deliver(group.members):
            group.expel(member, "it reads no messages")
        group.forget(run)
