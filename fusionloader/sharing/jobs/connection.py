"""A loader's connection to the coordinator: messages out, and what has come in."""

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
from fusionloader.sharing.jobs import payloads
from fusionloader.system.fd_messages import FdMessage, Fields
from fusionloader.system.shm.slots import Owner
from fusionloader.workers.messages import JobMessage

_PATIENCE_SECONDS = 20.0
_GONE = "the coordinator has ended"
_INTERRUPTED = "an exception was raised while a message of the coordinator was read"


class LeftGroup(ManagerOutdated):
    """This job is no member of the group any more; the message says why."""


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A mini-batch that is complete.

    Attributes:
        number: its place in the epoch.
        lease: by which it is released.
        slot: number of the slot with its rows.
        offset: of the slot in the object with all of them.
        nbytes: of the slot.
        failed: number of tiny-batches that failed.
        given_up: tiny-batches at which workers died, with the pid of the last.
        reports: of workers.
    """

    number: int
    lease: int
    slot: int
    offset: int
    nbytes: int
    failed: int
    given_up: tuple[tuple[int, int], ...]
    reports: tuple[JobMessage, ...]


class HeldBatch(NamedTuple):
    """A batch in a slot of the group that training looks at; ``owner`` ends its lease."""

    owner: weakref.ref[Owner]
    mapping: _native.SharedMapping


class CoordinatorConnection:
    """Messages to the coordinator and from it.

    To send raises no error of the socket: that the coordinator is gone is found where something is
    awaited. An exception that is raised from outside, such as ``KeyboardInterrupt``, loses no
    message: what is to be sent is forgotten when it was sent, and the coordinator ignores what it
    gets twice. Where a message that was read may be lost, the connection is closed, so that the job
    goes on alone.

    Attributes:
        left: why this job is no member of the epoch any more; empty while it is.
        differs: the mini-batch that other jobs have otherwise, and how it begins there.
        released: leases of batches that training no longer looks at. Finalizers, which may run in
            the middle of any statement, append to it and do nothing else.
        held: batches that training looks at, by their leases.
        fds: descriptors of the queue and of the slots, which came with an answer.
        made: samples of the epochs shared, by the pid of the job whose workers made them.
        waits: seconds that this job has waited for others, by their pids.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket: socket.socket | None = connected
        connected.setblocking(False)
        self.left = ""
        self.differs: tuple[int, bytes] | None = None
        self.released: list[int] = []
        self.made: Counter[int] = Counter()
        self.waits: dict[int, float] = {}
        self.held: dict[int, HeldBatch] = {}
        self.fds: tuple[int, ...] = ()
        self._taken: list[int] = []
        self._prepared: dict[int, PreparedBatch] = {}
        self._recovered: set[int] = set()
        self._answers: deque[Fields] = deque()
        _connections.add(self)

    @property
    def is_open(self) -> bool:
        """Whether the coordinator is there, as far as is known."""
        return self._socket is not None

    def drop_prepared(self) -> None:
        """Gives back what was not taken."""
        self.released += [each.lease for each in self._prepared.values()]
        self._prepared.clear()

    # ---- out -----------------------------------------------------------------------------------

    def send(self, fields: Fields, payload: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        """Sends a message; waits while the coordinator has many to read."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self._socket is not None:
            try:
                payloads.send(self._socket, fields, payload, fds)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    self.close()
                    return
                _wait(self._socket, select.POLLOUT, 0.1)
            except ConnectionError:
                self.close()
            except OSError as error:
                self.close(f"a message could not be sent: {error}")

    def step(self, fields: Fields, payload: bytes = b"") -> None:
        """Says what was taken and released since the last message, and something else."""
        taken, released = self._taken.copy(), self.released.copy()
        self.send({"do": "step", "taken": taken, "released": released, **fields}, payload)
        del self._taken[: len(taken)], self.released[: len(released)]

    def flush(self, also_released: bool = True) -> None:
        """Says what was taken and released, if anything was taken, or also if only released."""
        if self._taken or (also_released and self.released):
            self.step({})

    def submit(self, number: int, samples: bytes) -> None:
        """Sends a mini-batch, which the other jobs have to have, too."""
        self.step({"batch": number}, samples)

    def register_worker(self, number: int, message_fd: int) -> None:
        """Sends the coordinator the pipe of a worker that is about to be started."""
        self.send({"do": "worker", "number": number}, fds=(message_fd,))

    def recover(self, number: int) -> None:
        """Waits until the claims of a worker that has ended were taken back."""
        self._recovered.discard(number)
        self.send({"do": "dead", "number": number})
        while number not in self._recovered and self.is_open:
            self.receive(_PATIENCE_SECONDS)

    def ask(self, fields: Fields) -> Fields:
        """Sends a request and returns the answer.

        Raises:
            LeftGroup: there is none.
        """
        try:
            self.send(fields)
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while not self._answers:
                if not self.is_open or time.monotonic() > deadline:
                    raise LeftGroup(self.left or _GONE)
                self.receive(1.0)
            return self._answers.popleft()
        except BaseException:  # the next request must not get this one's answer
            self.close()
            raise

    # ---- in ------------------------------------------------------------------------------------

    def receive(self, seconds: float) -> None:
        """Reads what has come; where that is nothing, waits for a message, at most so long."""
        while self._socket is not None:
            try:
                self._read(self._socket)
            except BlockingIOError:
                if seconds <= 0:
                    return
                _wait(self._socket, select.POLLIN, seconds)
                seconds = 0.0
                continue
            if seconds > 0:  # it has come to something; what follows is read the next time
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
        except BaseException:  # a message that is lost would be waited for without end
            self.close(_INTERRUPTED)
            raise

    def _handle(self, message: FdMessage) -> None:
        fields = message.fields
        if "done" in fields:
            self._note_done(fields, message.payload)
        elif "recovered" in fields:
            self._recovered.add(int(fields["recovered"]))
        elif "left" in fields:
            self.left = str(fields["left"])
        elif "differs" in fields:
            self.differs = int(fields["differs"]), bytes.fromhex(fields["there"])
        else:
            # All that came before the answer is about an earlier epoch, whose mini-batches have
            # the same numbers; what comes behind it, perhaps in the same read, is about the new.
            self.drop_prepared()
            self.left, self.differs = "", None
            self.fds = message.fds or self.fds
            self._answers.append(fields)

    def _note_done(self, fields: Fields, payload: bytes) -> None:
        given_up = tuple((int(tiny_batch), int(pid)) for tiny_batch, pid in fields["given_up"])
        reports = tuple(pickle.loads(payload)) if payload else ()
        found = PreparedBatch(
            int(fields["done"]),
            int(fields["lease"]),
            int(fields["slot"]),
            int(fields["offset"]),
            int(fields["nbytes"]),
            int(fields["failed"]),
            given_up,
            reports,
        )
        self._prepared[found.number] = found
        self.made.update({int(pid): int(samples) for pid, samples in fields["made"]})
        for pid, seconds in fields["waits"]:
            self.waits[int(pid)] = self.waits.get(int(pid), 0.0) + float(seconds)

    def is_prepared(self, number: int) -> bool:
        """Whether a mini-batch of the epoch is complete."""
        return number in self._prepared

    def prepared(self, number: int) -> PreparedBatch:
        """Returns one that is complete, and was not taken."""
        return self._prepared[number]

    def take(self, number: int) -> None:
        """Takes one, if that was not done before: training gets it now."""
        found = self._prepared.get(number)
        if found is not None:
            self._taken.append(found.lease)
            del self._prepared[number]

    # ---- the end -------------------------------------------------------------------------------

    def keep_held(self) -> None:
        """Copies the batches that training looks at, whose slots may be used again from now on."""
        for held in list(self.held.values()):
            held.mapping.copy_all()

    def close(self, why: str = _GONE) -> None:
        """Closes it; the coordinator then knows that this job has left."""
        if self._socket is not None:
            self.keep_held()  # first: the coordinator gives the slots to others
            self.left = self.left or why
            # Forked workers have it open, too: closing it here would not end it.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._socket = None


_connections: weakref.WeakSet[CoordinatorConnection] = weakref.WeakSet()


def _keep_held_of_children() -> None:
    """Copies held batches: a forked child keeps them when this process has released them."""
    for connection in list(_connections):
        connection.keep_held()


os.register_at_fork(before=_keep_held_of_children)


def _wait(connection: socket.socket, event: int, seconds: float) -> None:
    poll = select.poll()
    poll.register(connection, event)
    poll.poll(seconds * 1000)
