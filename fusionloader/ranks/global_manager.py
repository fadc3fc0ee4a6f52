"""The global manager: sends idle CPU workers to the queues of other ranks of the machine.

A process of its own that sleeps until a worker has nothing to do or a rank that was asked to tells
of a mini-batch. It owns nothing: the lists are in the control blocks of the ranks
(csrc/queue/worker_sharing.hpp). Ranks go on without it, and its successor finds everything there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from fusionloader import _native
from fusionloader._native import WorkerActivity
from fusionloader.scheduler.worker_sharing import RankLoad, share_workers
from fusionloader.workers import fd_messages

_FIRST_SECONDS = 10.0  # for the first rank to come
_LAST_SECONDS = 2.0  # after the last one, which may be between two epochs
_LOOK_AGAIN_SECONDS = 0.05  # when a worker is idle although there is work, or on an assignment
_QUEUE_LENGTH = 128


@dataclass(frozen=True, slots=True)
class GlobalManagerConfig:
    """Where it listens, and how many ranks there are."""

    address: str
    ranks: int


def main(config: GlobalManagerConfig) -> None:
    """Serves until no rank is left; ends at once where another manager has the address."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir("/")
    listener = fd_messages.make_socket()
    try:
        listener.bind("\0" + config.address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return
        raise
    listener.listen(_QUEUE_LENGTH)
    GlobalManager(listener, config.ranks).serve()


@dataclass(slots=True, eq=False)
class Member:
    """A queue whose workers the manager directs: that of one loader of one rank.

    ``shared`` are the descriptors of control block, slots and table. ``kind`` has to be equal for
    workers to be shared; ``loader`` is the number of the loader in
    its process, by which those that belong together are told.
    """

    name: int
    rank: int
    loader: int
    kind: dict[str, str]
    connection: socket.socket
    pid_fd: int
    event_fd: int
    shared: tuple[int, ...]
    table_bytes: int
    pickled_plan: bytes
    view: _native.MemberView
    watched: bool = False
    noted: set[str] = field(default_factory=set)

    def close(self) -> None:
        """Lets go of its memory."""
        self.connection.close()
        for fd in (*self.shared, self.event_fd, self.pid_fd):
            if fd >= 0:
                os.close(fd)

    def note(self, text: str) -> None:
        """Tells its rank something, once."""
        if text not in self.noted:
            self.noted.add(text)
            _answer(self.connection, {"note": text})


class GlobalManager:
    """Members come, tell and go through descriptors that one loop waits for."""

    def __init__(self, listener: socket.socket, ranks: int) -> None:
        self._listener = listener
        self._ranks = ranks
        self._poll = select.epoll()
        self._poll.register(listener, select.EPOLLIN)
        self._strangers: dict[int, socket.socket] = {}
        self._members: dict[int, Member] = {}
        self._member_of: dict[int, Member] = {}  # by each descriptor of it that is waited for
        self._leave_at: float | None = time.monotonic() + _FIRST_SECONDS

    def serve(self) -> None:
        """Directs workers until there is nobody to direct."""
        again = False
        while True:
            timeout = _LOOK_AGAIN_SECONDS if again else None
            if self._leave_at is not None:
                timeout = max(0.0, self._leave_at - time.monotonic())
            ready = self._poll.poll(timeout)
            for fd, events in ready:
                self._hear(fd, events)
            if self._members:
                self._leave_at = None
                again = self._direct()
                continue
            again = False
            if self._leave_at is None:
                self._leave_at = time.monotonic() + _LAST_SECONDS
            elif not ready and time.monotonic() >= self._leave_at:
                return

    # ---- who is there --------------------------------------------------------------------------

    def _hear(self, fd: int, events: int) -> None:
        if fd == self._listener.fileno():
            self._accept()
        elif fd in self._strangers:
            self._greet(self._strangers[fd])
        elif fd in self._member_of:
            member = self._member_of[fd]
            if fd == member.event_fd:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(fd)
            elif fd == member.pid_fd or not self._still_there(member):
                self._drop(member)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        if not fd_messages.is_ours(connection):
            connection.close()
            return
        connection.setblocking(False)
        self._strangers[connection.fileno()] = connection
        self._poll.register(connection, select.EPOLLIN)

    def _greet(self, connection: socket.socket) -> None:
        """Hears what a new connection is for."""
        try:
            message = fd_messages.receive(connection)
        except BlockingIOError:
            return
        del self._strangers[connection.fileno()]
        self._poll.unregister(connection)
        wish = message.fields.get("do") if message is not None else None
        if message is not None and wish == "join":
            self._join(connection, message)
            return
        if message is not None:
            if wish == "fetch":
                self._give(connection, message.fields.get("member"))
            message.close()
        connection.close()

    def _join(self, connection: socket.socket, message: fd_messages.Message) -> None:
        try:
            why_not = self._why_not(message.fields)
            member = None if why_not else _member(connection, message)
        except (KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
            why_not, member = f"what it says of itself makes no sense here ({error})", None
        if member is None:
            message.close()
            _answer(connection, {"refused": why_not})
            connection.close()
            return
        _answer(connection, {"joined": True})
        self._members[member.name] = member
        for fd in (connection.fileno(), member.event_fd, member.pid_fd):
            if fd >= 0:
                self._poll.register(fd, select.EPOLLIN)
                self._member_of[fd] = member
        self._compare(member)

    def _why_not(self, fields: dict[str, Any]) -> str:
        version = fd_messages.package_version()
        if fields["version"] != version:
            return f"it has fusionloader {fields['version']}, the global manager {version}"
        if fields["ranks"] != self._ranks:
            return (
                f"its LOCAL_WORLD_SIZE is {fields['ranks']}, and {self._ranks} where the global "
                "manager was started"
            )
        return "taken" if fields["member"] in self._members else ""

    def _compare(self, new: Member) -> None:
        """Tells ranks whose loaders belong together and differ."""
        for other in self._members.values():
            if other.rank == new.rank or other.loader != new.loader:
                continue
            differ = [name for name in new.kind if new.kind[name] != other.kind.get(name)]
            if differ:
                what = ", ".join(differ)
                new.note(f"rank {other.rank} has another {what}: no workers are lent between us")
                other.note(f"rank {new.rank} has another {what}: no workers are lent between us")

    def _give(self, connection: socket.socket, name: Any) -> None:
        member = self._members.get(name)
        if member is None:
            _answer(connection, {"gone": True})
            return
        with contextlib.suppress(OSError):
            fields = {"table_bytes": member.table_bytes}
            fd_messages.send(
                connection, fd_messages.Message(fields, member.pickled_plan, member.shared)
            )

    def _still_there(self, member: Member) -> bool:
        try:
            message = fd_messages.receive(member.connection)
        except BlockingIOError:
            return True
        if message is not None:
            message.close()
        return message is not None

    def _drop(self, member: Member) -> None:
        del self._members[member.name]
        for fd in (member.connection.fileno(), member.event_fd, member.pid_fd):
            if self._member_of.pop(fd, None) is not None:
                self._poll.unregister(fd)
        member.close()

    # ---- directing -----------------------------------------------------------------------------

    def _direct(self) -> bool:
        """Sends idle workers where they are needed; tells whether to look again before long."""
        kinds: dict[tuple[str, ...], list[Member]] = {}
        for member in self._members.values():
            kinds.setdefault(tuple(sorted(member.kind.values())), []).append(member)
        return any([_direct_kind(members) for members in kinds.values()])


def _direct_kind(members: list[Member]) -> bool:
    workers = [member.view.workers() for member in members]
    idle = [
        [
            number
            for number, worker in enumerate(own)
            if worker.activity is WorkerActivity.IDLE and not worker.member
        ]
        for own in workers
    ]
    watch = any(idle) and len(members) > 1
    for member in members:  # before looking: what is published after that tells of itself
        if member.watched != watch:
            member.watched = watch
            member.view.watch(watch)
    sent = [
        (worker.member, worker.guest_slot) for own in workers for worker in own if worker.member
    ]
    if not watch:
        # An assignment may come to nothing, of which the worker, still idle, would not tell.
        return bool(sent) and len(members) > 1
    in_flight = [member.view.progress() for member in members]
    ranks = [
        RankLoad(
            tuple(mini_batch.waiting for mini_batch in mini_batches),
            sum(mini_batch.half_done for mini_batch in mini_batches),
            sum(worker.activity is WorkerActivity.HOME for worker in own)
            + member.view.borrowed_at_work()
            + sum(target == member.name for target, _ in sent),
            len(free),
        )
        for member, own, mini_batches, free in zip(members, workers, in_flight, idle, strict=True)
    ]
    for move in share_workers(ranks):
        source, destination = members[move.source], members[move.destination]
        taken = {guest_slot for target, guest_slot in sent if target == destination.name}
        guest_slots = [
            guest_slot
            for guest_slot in destination.view.free_guest_slots()
            if guest_slot not in taken
        ]
        last = in_flight[move.destination][move.ahead].sequence
        for guest_slot in guest_slots[: move.workers]:
            worker = idle[move.source].pop()
            source.view.send(worker, last, destination.name, guest_slot)
            sent.append((destination.name, guest_slot))
    return any(any(rank.unclaimed) for rank in ranks)


def _member(connection: socket.socket, message: fd_messages.Message) -> Member:
    fields = message.fields
    control, data, table, event = message.fds
    pid_fd = -1
    with contextlib.suppress(OSError):  # without it, the end of the connection has to do
        pid_fd = os.pidfd_open(fd_messages.peer_pid(connection))
    return Member(
        name=int(fields["member"]),
        rank=int(fields["rank"]),
        loader=int(fields["loader"]),
        kind=dict(fields["kind"]),
        connection=connection,
        pid_fd=pid_fd,
        event_fd=event,
        shared=(control, data, table),
        table_bytes=int(fields["table_bytes"]),
        pickled_plan=message.payload,
        view=_native.MemberView(control, data),
    )


def _answer(connection: socket.socket, fields: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        fd_messages.send(connection, fd_messages.Message(fields))
