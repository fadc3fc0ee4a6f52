"""A loader's connection to the coordinator, and what was received through it."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
import time
import weakref
from collections import Counter, deque
from dataclasses import dataclass
from typing import NamedTuple

from fusionloader import _native
from fusionloader.engine.manager.manager import ManagerOutdated
from fusionloader.engine.manager.publications import Reports
from fusionloader.sharing.jobs import payloads
from fusionloader.system.fd_messages import FdMessage, Fields
from fusionloader.system.shm.descriptor import wait_for
from fusionloader.system.shm.slots import Owner
from fusionloader.workers import messages

_PATIENCE_SECONDS = 20.0
_GONE = "the coordinator has ended"
_INTERRUPTED = "an exception was raised while a message of the coordinator was read"


class LeftGroup(ManagerOutdated):
    """This job is no longer a member of the group; the message says why."""


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A complete mini-batch in a slot of the group.

    Attributes:
        number: position in the epoch.
        lease: number under which the batch is released.
        slot: number of the slot that holds the rows.
        offset: first byte of the slot in the shared-memory object of all slots.
        nbytes: size of the slot.
        failed: number of tiny-batches that failed.
        given_up: tiny-batches whose workers kept dying, each with the pid of the last one.
        reports: what workers have reported about the batch.
        is_shared: whether other jobs were in the epoch when it was complete.
    """

    number: int
    lease: int
    slot: int
    offset: int
    nbytes: int
    failed: int
    given_up: tuple[tuple[int, int], ...]
    reports: Reports
    is_shared: bool


class HeldBatch(NamedTuple):
    """A delivered batch that training still references; its lease ends with ``owner``."""

    owner: weakref.ref[Owner]
    mapping: _native.SharedMapping


class CoordinatorConnection:
    """Sends messages to the coordinator, and reads those that it sends.

    Sending raises no errors of the socket: a dead coordinator is noticed where an answer is
    awaited. An exception from outside, such as ``KeyboardInterrupt``, loses no message: what has
    to be sent is dropped only after it was sent, and the coordinator ignores duplicates. If a
    message may be lost while it is read, the connection is closed, and the job goes on alone.

    Attributes:
        left: why this job is no longer a member of the epoch; empty while it is one.
        may_return: whether it may begin the rest of the epoch anew once it has left.
        differs: number of the mini-batch that another job has submitted with other samples, and
            the beginning of that job's packed samples.
        released: leases of batches that training no longer references. Finalizers may run in the
            middle of any statement, so they append to it and do nothing else.
        held: batches that training still references, by lease.
        fds: descriptors of the queue and of the slots.
        jobs: pids of the other jobs that take part, or have taken part, in the epoch.
        made: number of shared samples, by the pid of the job whose workers made them.
        waits: seconds that this job has waited for other jobs, by pid.
        reported: messages of this job's workers that concern no mini-batch.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket: socket.socket | None = connected
        connected.setblocking(False)
        self.left = ""
        self.may_return = False
        self.differs: tuple[int, bytes] | None = None
        self.released: list[int] = []
        self.jobs: tuple[int, ...] = ()
        self.made: Counter[int] = Counter()
        self.waits: dict[int, float] = {}
        self.reported: list[messages.Message] = []
        self.held: dict[int, HeldBatch] = {}
        self.fds: tuple[int, ...] = ()
        self._taken: list[int] = []
        self._prepared: dict[int, PreparedBatch] = {}
        self._recovered: set[int] = set()
        self._answers: deque[Fields] = deque()
        _connections.add(self)

    @property
    def is_open(self) -> bool:
        """Whether the coordinator is still connected, as far as this job has noticed."""
        return self._socket is not None

    def drop_prepared(self) -> None:
        """Releases the complete mini-batches that training has not taken."""
        self.released += [each.lease for each in self._prepared.values()]
        self._prepared.clear()

    # ---- out -----------------------------------------------------------------------------------

    def send(self, fields: Fields, payload: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        """Sends a message; closes the connection if the coordinator reads nothing for 20 s."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self._socket is not None:
            try:
                payloads.send(self._socket, fields, payload, fds)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    self.close(f"the coordinator has read nothing for {_PATIENCE_SECONDS:g} s")
                    return
                wait_for(self._socket.fileno(), select.POLLOUT, 0.1)
            except ConnectionError:
                self.close()
            except OSError as error:
                self.close(f"a message could not be sent: {error}")

    def step(self, fields: Fields, payload: bytes = b"") -> None:
        """Sends ``fields`` with the leases that were taken and released since the last message."""
        taken, released = self._taken.copy(), self.released.copy()
        self.send({"do": "step", "taken": taken, "released": released, **fields}, payload)
        # Only the copied part: a finalizer may have appended a lease since.
        del self._taken[: len(taken)], self.released[: len(released)]

    def flush(self, also_released: bool = True) -> None:
        """Sends leases if any were taken or, with ``also_released``, if any were released."""
        if self._taken or (also_released and self.released):
            self.step({})

    def submit(self, number: int, samples: bytes) -> None:
        """Submits a mini-batch; ``samples`` are packed."""
        self.step({"batch": number}, samples)

    def register_worker(self, number: int, message_fd: int) -> None:
        """Sends the coordinator the message pipe of a worker that is about to start."""
        self.send({"do": "worker", "number": number}, fds=(message_fd,))

    def recover(self, number: int) -> None:
        """Waits until the coordinator has taken back the claims of a worker that has ended."""
        self._recovered.discard(number)
        self.send({"do": "dead", "number": number})
        while number not in self._recovered and self.is_open:
            self.receive(_PATIENCE_SECONDS)

    def ask(self, fields: Fields) -> Fields:
        """Sends a request and returns the answer.

        Raises:
            LeftGroup: no answer came within 20 s, or the connection is closed.
        """
        try:
            self.send(fields)
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while not self._answers:
                if time.monotonic() > deadline:
                    self.close(f"the coordinator has answered nothing for {_PATIENCE_SECONDS:g} s")
                if not self.is_open:
                    raise LeftGroup(self.left)
                self.receive(1.0)
            return self._answers.popleft()
        except BaseException:  # the next request must not get this one's answer
            self.close()
            raise

    # ---- in ------------------------------------------------------------------------------------

    def receive(self, seconds: float) -> None:
        """Handles messages that have arrived; if there are none, waits at most ``seconds``."""
        while self._socket is not None:
            try:
                self._read(self._socket)
            except BlockingIOError:
                if seconds <= 0:
                    return
                wait_for(self._socket.fileno(), select.POLLIN, seconds)
                seconds = 0.0
                continue
            if seconds > 0:  # a message was there without waiting; the next call reads more
                return

    def _read(self, connected: socket.socket) -> None:
        try:
            message = payloads.receive(connected)
            if message is None:
                self.close()
            else:
                self._handle(message)
        except BlockingIOError:
            raise
        except BaseException:  # the job would wait for a lost message without end
            self.close(_INTERRUPTED)
            raise

    def _handle(self, message: FdMessage) -> None:
        fields = message.fields
        if "done" in fields:
            self._note_done(fields, message.payload)
        elif "recovered" in fields:
            self._recovered.add(int(fields["recovered"]))
        elif "reported" in fields:
            self.reported.append(pickle.loads(message.payload))
        elif "left" in fields:
            self.left, self.may_return = str(fields["left"]), bool(fields.get("may_return"))
        elif "differs" in fields:
            self.differs = int(fields["differs"]), bytes.fromhex(fields["there"])
        else:
            # Messages before the answer are about an earlier epoch, whose mini-batches have the
            # same numbers. Messages after it, perhaps of the same read, are about the new epoch.
            self.drop_prepared()
            self.left, self.may_return, self.differs = "", False, None
            self.fds = message.fds or self.fds
            self._answers.append(fields)

    def _note_done(self, fields: Fields, payload: bytes) -> None:
        given_up = tuple((int(tiny_batch), int(pid)) for tiny_batch, pid in fields["given_up"])
        reports = pickle.loads(payload) if payload else ({}, {}, {})
        found = PreparedBatch(
            int(fields["done"]),
            int(fields["lease"]),
            int(fields["slot"]),
            int(fields["offset"]),
            int(fields["nbytes"]),
            int(fields["failed"]),
            given_up,
            reports,
            bool(fields["jobs"]),
        )
        self._prepared[found.number] = found
        self.jobs = tuple(sorted({*self.jobs, *map(int, fields["jobs"])}))
        self.made.update({int(pid): int(samples) for pid, samples in fields["made"]})
        for pid, seconds in fields["waits"]:
            self.waits[int(pid)] = self.waits.get(int(pid), 0.0) + float(seconds)

    def is_prepared(self, number: int) -> bool:
        """Whether a mini-batch is complete and not taken yet."""
        return number in self._prepared

    def prepared(self, number: int) -> PreparedBatch:
        return self._prepared[number]

    def take(self, number: int) -> None:
        """Marks a mini-batch as taken by training; a second call does nothing."""
        found = self._prepared.get(number)
        if found is not None:
            self._taken.append(found.lease)
            del self._prepared[number]

    # ---- the end -------------------------------------------------------------------------------

    def keep_held(self) -> None:
        """Copies the batches that training still references, whose slots may then be reused."""
        for held in list(self.held.values()):
            held.mapping.copy_all()

    def close(self, why: str = _GONE) -> None:
        """Ends the connection, by which the coordinator sees that this job has left."""
        if self._socket is not None:
            self.keep_held()  # first: the coordinator reuses the slots
            self.left, self.may_return = self.left or why, False
            # Forked workers have copies of the socket, so closing it would not end the connection.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._socket = None


_connections: weakref.WeakSet[CoordinatorConnection] = weakref.WeakSet()


def _keep_held_of_children() -> None:
    """Copies held batches before a fork: the child keeps them after this process releases them."""
    for connection in list(_connections):
        connection.keep_held()


os.register_at_fork(before=_keep_held_of_children)
