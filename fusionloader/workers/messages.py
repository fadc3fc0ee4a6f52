"""Messages from a worker to the local manager, through one pipe per worker.

Only what cannot be written to the batch slots: errors, the layout of samples, samples that do not
fit it. A worker may die while it writes a message: the incomplete message is dropped.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # native workers do not import torch
    from collections.abc import Callable

    from fusionloader.data.deferred.counts import Counts
    from fusionloader.transforms.executors.layout import Layout

_PIPE = 1 << 16  # bytes that a pipe holds
_HEADER = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of user code or of a file, as values.

    Attributes:
        kind: the exception's type, pickled by reference; ``None`` if it cannot be.
        text: the message with the worker's traceback.
        position: of the sample in the mini-batch, -1 if the failure belongs to no sample.
        line: type and message of the exception in one line, for the log.
    """

    kind: bytes | None
    text: str
    position: int
    line: str = ""


@dataclass(frozen=True, slots=True)
class TinyBatchFailed:
    """A tiny-batch raised an exception."""

    sequence: int
    tiny_batch: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class SampleSkipped:
    """A bad sample was left out or replaced, as ``on_error`` says."""

    sequence: int
    row: int
    replaced_by: int | None
    failure: Failure


class SamplesSpilled(NamedTuple):  # unpickled for each whole batch: no dataclass is so fast
    """The samples of a tiny-batch, which do not fit the layout, pickled."""

    sequence: int
    tiny_batch: int
    samples: bytes


class StateAfter(NamedTuple):
    """What becomes of the dataset of a worker that reads it on its own, with a mini-batch.

    ``state`` is its state behind the mini-batch, pickled, and ``generators`` the worker's global
    generators'; ``None`` where it has no state. Where it has ``ended``, it has given nothing for
    the mini-batch, and gives nothing more.
    """

    sequence: int
    tiny_batch: int
    state: bytes | None
    generators: bytes | None
    ended: bool


@dataclass(frozen=True, slots=True)
class LayoutFound:
    """The layout of the first sample, or the reason why it has none."""

    layout: Layout | str


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The worker cannot start or continue: ``worker_init_fn`` raised, or the device was lost."""

    failure: Failure
    short_of_memory: bool = False  # memory ran out: with less to do it may start
    is_final: bool = False  # another one would fail likewise
    summary: str = ""  # the error in one line, and what to do


@dataclass(frozen=True, slots=True)
class SamplesRefused:
    """Samples that a GPU worker has left to CPU workers since the last such message, by reason."""

    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class DatasetChanged:
    """``worker_init_fn`` changed the dataset that the plan was compiled from."""


@dataclass(frozen=True, slots=True)
class ImagesDeferred:
    """What was counted of deferred images since the last such message."""

    counts: Counts


@dataclass(frozen=True, slots=True)
class RemoteNotice:
    """Something to warn of about remote workers, in words."""

    text: str


JobMessage = TinyBatchFailed | SampleSkipped | SamplesSpilled | StateAfter
"""About a mini-batch."""

Message = (
    JobMessage
    | LayoutFound
    | WorkerFailed
    | DatasetChanged
    | ImagesDeferred
    | SamplesRefused
    | RemoteNotice
)


def send(fd: int, message: Message) -> None:
    """Writes a message; blocks while the pipe is full, and drops it if the loader has ended."""
    payload = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    rest = memoryview(_HEADER.pack(len(payload)) + payload)
    with contextlib.suppress(BrokenPipeError):
        while rest:
            rest = rest[os.write(fd, rest) :]


def has_room(fd: int) -> bool:
    """Whether a short message can be sent now without waiting."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


class Receiver:
    """The manager's end of one worker's pipe.

    It may be drained at any time: by threads that wait for the same worker, and by finalizers,
    which run in the middle of any statement.
    """

    fd = -1  # of one that could not be made

    def __init__(self, fd: int) -> None:
        """``fd`` is -1 where another process receives."""
        self._buffer = bytearray()
        self._lock = threading.RLock()
        self._in_use = False
        if fd >= 0:
            os.set_blocking(fd, False)
        self.fd = fd

    @property
    def partial(self) -> bool:
        """Whether a message has arrived in part."""
        return bool(self._buffer)

    def drain(self) -> None:
        """Empties the pipe into the buffer, so that the worker's writes do not block.

        Does nothing while another call reads: chunks have to be buffered in order.
        """
        if self._lock.acquire(blocking=False):
            try:
                if not self._in_use:  # by this thread, and this is a finalizer
                    self._read()
            finally:
                self._lock.release()

    def _read(self) -> None:
        self._in_use = True
        try:
            while self.fd >= 0 and (chunk := os.read(self.fd, _PIPE)):
                self._buffer += chunk
                if len(chunk) < _PIPE:
                    break
        except BlockingIOError:
            pass
        finally:  # also by Ctrl-C
            self._in_use = False

    def handle(self, handle: Callable[[Message], None]) -> None:
        """Calls ``handle`` with each message that has arrived, without waiting for more.

        A message is forgotten when ``handle`` has returned. If that raises, or Ctrl-C comes, the
        message is handled once more by the next call, so ``handle`` has to bear messages twice.
        """
        with self._lock:
            if self._in_use:  # by this thread: a finalizer interrupts the handling of a message
                return
            self._read()
            if not self._buffer:
                return
            self._in_use = True
            try:
                while end := self._end_of_message():
                    handle(pickle.loads(self._buffer[_HEADER.size : end]))
                    del self._buffer[:end]
            finally:
                self._in_use = False

    def _end_of_message(self) -> int:
        """Returns where the first message ends in the buffer; 0 if it has not arrived whole."""
        if len(self._buffer) < _HEADER.size:
            return 0
        (size,) = _HEADER.unpack_from(self._buffer)
        end: int = _HEADER.size + size
        return end if len(self._buffer) >= end else 0

    def wait(self, seconds: float) -> None:
        """Sleeps until more of a message has arrived, at most ``seconds``."""
        poll = select.poll()  # select() takes no descriptors from 1024 on
        poll.register(self.fd, select.POLLIN)
        poll.poll(seconds * 1000)

    def close(self, close_fd: Callable[[int], None] = os.close) -> None:
        """Closes the descriptor.

        ``close_fd`` is a default argument because Python may clear its modules before ``__del__``.
        """
        with self._lock:  # no thread reads the next file with this number
            fd, self.fd = self.fd, -1
            if fd >= 0:
                close_fd(fd)

    def __del__(self) -> None:  # an exception may have come before it was closed
        if self.fd >= 0:
            self.close()
