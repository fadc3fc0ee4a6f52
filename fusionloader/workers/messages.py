"""Messages from a worker to the local manager, through one pipe per worker.

Messages carry what does not fit the batch slots: errors, the layout of samples, samples of another
layout. If a worker dies while it writes a message, the incomplete message is dropped.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import struct
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # native workers do not import torch
    from collections.abc import Callable

    from fusionloader.data.deferred.counts import Counts
    from fusionloader.transforms.executors.layout import Layout

_PIPE = 1 << 16  # capacity of a pipe in bytes
_HEADER = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of user code or of a file, as values.

    Attributes:
        kind: type of the exception, pickled by reference; ``None`` if it cannot be pickled.
        text: message with the worker's traceback.
        row: row of the sample in the mini-batch, -1 if the failure is of no sample.
        line: type and message of the exception in one line, for the log.
    """

    kind: bytes | None
    text: str
    row: int
    line: str = ""


@dataclass(frozen=True, slots=True)
class TinyBatchFailed:
    """An exception was raised while a tiny-batch was made."""

    sequence: int
    tiny_batch: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class SampleSkipped:
    """A bad sample was left out, or replaced by that of index ``replaced_by``."""

    sequence: int
    row: int
    replaced_by: int | None
    failure: Failure


class SamplesSpilled(NamedTuple):  # faster to unpickle than a dataclass; sent for each whole batch
    """The pickled samples of a tiny-batch that do not fit the layout."""

    sequence: int
    tiny_batch: int
    samples: bytes


class StateAfter(NamedTuple):
    """The state of a worker that reads the dataset on its own, after a mini-batch.

    Attributes:
        sequence: number of the mini-batch.
        tiny_batch: number of the tiny-batch.
        state: pickled state of the dataset; ``None`` if it has none.
        generators: pickled states of the worker's global generators; ``None`` without ``state``.
        ended: whether the dataset was exhausted, so that there is no such mini-batch.
    """

    sequence: int
    tiny_batch: int
    state: bytes | None
    generators: bytes | None
    ended: bool


class SlotWanted(NamedTuple):
    """A whole batch of ``nbytes`` is made, and the mini-batch has no slot that is large enough."""

    sequence: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class LayoutFound:
    """The layout of the first sample, or the reason why there is none."""

    layout: Layout | str


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The worker cannot start or continue: ``worker_init_fn`` raised, or the device was lost.

    Attributes:
        failure: the error.
        short_of_memory: whether memory ran out, so that smaller launches may work.
        is_final: whether another worker would fail likewise.
        summary: the error in one line, and what to do.
    """

    failure: Failure
    short_of_memory: bool = False
    is_final: bool = False
    summary: str = ""


@dataclass(frozen=True, slots=True)
class SamplesRefused:
    """Samples that a GPU worker left to CPU workers since the last such message, by reason."""

    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class GroupChosen:
    """How many samples the GPU worker puts into a launch from now on."""

    samples: int


@dataclass(frozen=True, slots=True)
class DatasetChanged:
    """``worker_init_fn`` changed the dataset that the plan was compiled from."""


@dataclass(frozen=True, slots=True)
class ImagesDeferred:
    """The counters of deferred images since the last such message, but those in shared memory."""

    counts: Counts


@dataclass(frozen=True, slots=True)
class RemoteNotice:
    """A warning about remote workers."""

    text: str


JobMessage = TinyBatchFailed | SampleSkipped | SamplesSpilled | StateAfter
"""A message about a mini-batch."""

Message = (
    JobMessage
    | SlotWanted
    | LayoutFound
    | WorkerFailed
    | DatasetChanged
    | ImagesDeferred
    | SamplesRefused
    | GroupChosen
    | RemoteNotice
)


def send(fd: int, message: Message) -> None:
    """Writes a message; blocks while the pipe is full, and drops the message if it is closed."""
    payload = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    rest = memoryview(_HEADER.pack(len(payload)) + payload)
    with contextlib.suppress(BrokenPipeError):
        while rest:
            rest = rest[os.write(fd, rest) :]


def can_send(fd: int) -> bool:
    """Whether a short message can be sent without blocking."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


_receivers: weakref.WeakSet[Receiver] = weakref.WeakSet()


class Receiver:
    """The manager's end of one worker's pipe.

    It may be drained at any time: by threads that wait for the same worker, and by finalizers,
    which run in the middle of any statement.
    """

    fd = -1  # for __del__, if __init__ has raised

    def __init__(self, fd: int) -> None:
        """``fd`` is -1 if another process receives the messages."""
        _receivers.add(self)
        self._received: list[bytes] = []  # chunks; handled messages are cut off the first one
        self._lock = threading.RLock()
        self._in_use = False
        if fd >= 0:
            os.set_blocking(fd, False)
        self.fd = fd

    @property
    def partial(self) -> bool:
        return any(self._received)

    def drain(self) -> None:
        """Empties the pipe, so that the worker's writes do not block.

        Does nothing while another call reads, since chunks have to be buffered in order.
        """
        if self._lock.acquire(blocking=False):
            try:
                if not self._in_use:  # else this is a finalizer in the middle of a call
                    self._read()
            finally:
                self._lock.release()

    def _read(self) -> None:
        self._in_use = True
        try:
            while self.fd >= 0:
                # One call reads and keeps. An exception between two calls would lose the messages.
                self._received.extend(map(os.read, (self.fd,), (_PIPE,)))
                if len(self._received[-1]) < _PIPE:
                    break
        except BlockingIOError:
            pass
        finally:  # even after Ctrl-C
            self._in_use = False

    def handle(self, handle: Callable[[Message], None]) -> None:
        """Calls ``handle`` with each message that has arrived, without waiting for more.

        A message is removed after ``handle`` has returned. If ``handle`` raises or is interrupted
        by Ctrl-C, the next call handles the message again, so ``handle`` must be idempotent.
        """
        with self._lock:
            if self._in_use:  # this is a finalizer in the middle of a call
                return
            self._read()
            if not self.partial:
                return
            self._in_use = True
            try:
                while end := self._end_of_message():
                    handle(pickle.loads(self._received[0][_HEADER.size : end]))
                    self._received[0] = self._received[0][end:]
            finally:
                self._in_use = False

    def _end_of_message(self) -> int:
        """Returns the end of the first message in the first chunk; 0 if it is incomplete."""
        if not self._reach(_HEADER.size):
            return 0
        (size,) = _HEADER.unpack_from(self._received[0])
        end: int = _HEADER.size + size
        return end if self._reach(end) else 0

    def _reach(self, end: int) -> bool:
        """Makes the first chunk as long as ``end``. Returns ``False`` if less has arrived."""
        if len(self._received[0]) < end:
            if sum(map(len, self._received)) < end:
                return False
            self._received[:] = [b"".join(self._received)]
        return True

    def wait(self, seconds: float) -> None:
        """Sleeps until more of a message has arrived, at most ``seconds``."""
        poll = select.poll()  # select() is limited to descriptors below 1024
        poll.register(self.fd, select.POLLIN)
        poll.poll(seconds * 1000)

    def close(self, close_fd: Callable[[int], None] = os.close) -> None:
        """Closes the descriptor.

        ``close_fd`` is a default argument because Python may clear its modules before ``__del__``.
        """
        with self._lock:  # or another thread might read from a new file with this number
            fd, self.fd = self.fd, -1
            if fd >= 0:
                close_fd(fd)

    def __del__(self) -> None:  # an exception may have prevented close()
        if self.fd >= 0:
            self.close()


def _close_in_child() -> None:
    """Closes the manager's ends: a forked worker that had its own would write to it for ever.

    Without their locks, which a thread of the parent may have held.
    """
    for receiver in list(_receivers):
        fd, receiver.fd = receiver.fd, -1
        if fd >= 0:
            os.close(fd)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
