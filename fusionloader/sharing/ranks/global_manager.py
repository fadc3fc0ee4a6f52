"""The global manager: assigns idle CPU workers to the queues of other ranks of the machine.

Theory of operation. The manager is one separate process per job and machine. The first rank that
finds no listener at the job's address (discovery.py) starts it; binding that address decides
between two that start at once.

*Joining.* Every loader that shares workers opens a connection and sends the descriptors of its
control block and slots, an eventfd, and for native workers its dataset table and plan. It is then a
*member*. The manager maps the control block only. It passes the rest to workers that ask for it
(workers/assignments.py).

*Deciding.* The event loop (system/local_service.py) waits for the eventfds, too. A
worker writes to its member's eventfd when it becomes idle. While a worker is idle the members are
*watched*: they write to their eventfd when they publish a mini-batch. On each event the manager
reads the loads of all members and asks ``share_workers`` (scheduler/worker_sharing.py) which idle
workers move where. Each move is one store of an assignment into the worker's record, the paper's
``YIELD`` and ``BORROW``. The loop wakes without an event, every 0.05 s, only while a worker is idle
beside unclaimed work or has an assignment, which may come to nothing.

*Why failures are harmless.* The manager owns no state. Progress, assignments and claims are in the
control blocks of the ranks (csrc/queue/worker_sharing.hpp), and a worker claims by compare-and-swap
from a guest slot that its own identity marks. So a wrong or repeated assignment costs time and no
sample; ranks go on without a manager, and its successor reads the same control blocks.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass, field

from fusionloader import _native
from fusionloader._native import WorkerActivity
from fusionloader.scheduler.worker_sharing import RankLoad, share_workers
from fusionloader.system import fd_messages
from fusionloader.system.fd_messages import FdMessage, Fields
from fusionloader.system.local_service import LocalPeer, LocalService

_RETRY_SECONDS = 0.05  # when a worker is idle although there is work, or has an assignment
_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class GlobalManagerConfig:
    """The socket's name to listen on, and the number of ranks of the machine."""

    address: str
    ranks: int


def main(config: GlobalManagerConfig) -> None:
    """Serves until no member is left; returns at once where another manager has the address."""
    os.chdir("/")
    listener = fd_messages.listen(config.address, _BACKLOG)
    if listener is not None:
        GlobalManager(listener, config.ranks).serve()


@dataclass(slots=True, eq=False)
class RankMember:
    """A queue whose workers the manager assigns: that of one loader of one rank.

    Attributes:
        name: number that identifies the queue, from 1 to 0xFFFF, drawn by the rank.
        rank: the rank's number on the machine.
        loader: number of the loader in its process; equal numbers belong together.
        kind: digests, by name, that have to be equal for workers to be shared.
        peer: the rank's process; its end is the member's end.
        event_fd: eventfd that the rank's workers and local manager write to.
        shared: descriptors of control block and slots, and of the table if there is one.
        table_bytes: size of the table.
        pickled_plan: the plan, for native workers that serve the queue.
        view: the control block.
        watched: whether the rank writes to ``event_fd`` when it publishes.
        noted: warnings that were sent to the rank.
        is_told_of_moves: whether the rank logs each move of a worker.
    """

    name: int
    rank: int
    loader: int
    kind: dict[str, str]
    peer: LocalPeer
    event_fd: int
    shared: tuple[int, ...]
    table_bytes: int
    pickled_plan: bytes
    view: _native.MemberView
    watched: bool = False
    noted: set[str] = field(default_factory=set)
    is_told_of_moves: bool = False

    def close(self) -> None:
        for fd in (*self.shared, self.event_fd):
            os.close(fd)

    def note(self, text: str) -> None:
        """Sends a warning for the rank to log, once."""
        if text not in self.noted:
            self.noted.add(text)
            self.peer.reply({"note": text})


class GlobalManager(LocalService[LocalPeer]):
    """Assigns workers until there have been no members for a while."""

    name = "the global manager"
    last_seconds = 2.0  # ranks may be between two epochs

    def __init__(self, listener: socket.socket, ranks: int) -> None:
        super().__init__(listener, LocalPeer)
        self._ranks = ranks
        self._members: dict[int, RankMember] = {}
        self._member_of: dict[LocalPeer, RankMember] = {}

    def is_needed(self) -> bool:
        return bool(self._members)

    def advance(self) -> float | None:
        return _RETRY_SECONDS if self._assign() else None

    # ---- members -------------------------------------------------------------------------------

    def handle(self, peer: LocalPeer, message: FdMessage) -> bool:
        """Handles a connection's first message: ``join`` of a rank or ``fetch`` of a worker."""
        if peer in self._member_of:
            return True  # nothing is expected of a member
        request = message.fields.get("do")
        if request == "join":
            return self._join(peer, message)
        if request == "fetch":
            self._send_shared(peer, message.fields.get("member"))
        return False

    def _join(self, peer: LocalPeer, message: FdMessage) -> bool:
        try:
            refusal = self._refusal(message.fields)
            member = None if refusal else _member(peer, message)
        except (KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
            refusal, member = f"its offer cannot be read ({error})", None
        if member is None:
            peer.reply({"refused": refusal})
            return False
        peer.reply({"joined": True})
        self._members[member.name] = self._member_of[peer] = member
        self.watch(member.event_fd, lambda: _clear(member.event_fd))
        self._compare(member)
        return True

    def _refusal(self, fields: Fields) -> str:
        """Returns why a rank cannot join, an empty text if it can."""
        version = fd_messages.package_version()
        if fields["version"] != version:
            return f"it has fusionloader {fields['version']}, the global manager {version}"
        if fields["ranks"] != self._ranks:
            return (
                f"its LOCAL_WORLD_SIZE is {fields['ranks']}, and {self._ranks} where the global "
                "manager was started"
            )
        return "taken" if fields["member"] in self._members else ""

    def _compare(self, new: RankMember) -> None:
        """Warns ranks whose loaders belong together and differ in kind."""
        for other in self._members.values():
            if other.rank == new.rank or other.loader != new.loader:
                continue
            if new.kind.keys() != other.kind.keys():  # one of them runs user code
                continue
            differ = [name for name in new.kind if new.kind[name] != other.kind.get(name)]
            if differ:
                what = ", ".join(differ)
                new.note(f"rank {other.rank} has another {what}: no workers are shared with it")
                other.note(f"rank {new.rank} has another {what}: no workers are shared with it")

    def _send_shared(self, peer: LocalPeer, name: object) -> None:
        """Sends a worker the descriptors and the plan of a member."""
        member = self._members.get(name) if isinstance(name, int) else None
        if member is None:
            peer.reply({"unknown": True})
        else:
            fields = {"table_bytes": member.table_bytes}
            peer.reply(fields, member.pickled_plan, member.shared)

    def left(self, peer: LocalPeer) -> None:
        member = self._member_of.pop(peer, None)
        if member is not None:
            del self._members[member.name]
            self.unwatch(member.event_fd)
            member.close()

    # ---- assigning -----------------------------------------------------------------------------

    def _assign(self) -> bool:
        """Assigns idle workers where they are needed; returns whether to look again before long."""
        kinds: dict[tuple[tuple[str, str], ...], list[RankMember]] = {}
        for member in self._members.values():
            kinds.setdefault(tuple(sorted(member.kind.items())), []).append(member)
        return any([_assign_among(members) for members in kinds.values()])  # a list: call all


def _assign_among(members: list[RankMember]) -> bool:
    """Assigns idle workers among queues that all of them can serve; returns as ``_assign``."""
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
    for member in members:  # before reading loads: what is published later raises an event
        if member.watched != watch:
            member.watched = watch
            member.view.watch(watch)
    sent = [
        (worker.member, worker.guest_slot) for own in workers for worker in own if worker.member
    ]
    if not watch:
        # An assignment may come to nothing; the worker, still idle, would raise no event.
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
        guest_slots = guest_slots[: move.workers]
        for guest_slot in guest_slots:
            worker = idle[move.source].pop()
            source.view.send(worker, last, destination.name, guest_slot)
            sent.append((destination.name, guest_slot))
        if guest_slots:
            _tell(source, destination, len(guest_slots), last)
    return any(any(rank.unclaimed) for rank in ranks)


def _tell(source: RankMember, destination: RankMember, workers: int, mini_batch: int) -> None:
    moved = f"YIELD {workers} from rank {source.rank}, BORROW {workers} by rank {destination.rank}"
    for member in (source, destination):
        if member.is_told_of_moves:
            member.peer.reply({"moved": f"{moved} until mini-batch {mini_batch}"})


def _member(peer: LocalPeer, message: FdMessage) -> RankMember:
    fields = message.fields
    event, control, data, *table = message.fds
    member = RankMember(
        name=int(fields["member"]),
        rank=int(fields["rank"]),
        loader=int(fields["loader"]),
        kind=dict(fields["kind"]),
        peer=peer,
        event_fd=event,
        shared=(control, data, *table),
        table_bytes=int(fields["table_bytes"]),
        pickled_plan=message.payload,
        view=_native.MemberView(control, data),
        is_told_of_moves=bool(fields["is_told_of_moves"]),
    )
    message.fds = ()  # the member's from now on
    return member


def _clear(event_fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(event_fd)
