"""Messages from a worker to the local manager, through a pipe of its own.

Only what cannot go through the batch slots: errors, the layout of samples, samples that do not fit
it. A worker may die in the middle of a message; the rest of it then never comes, and what has come
is dropped with the worker.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import struct
import threading
from dataclasses import dataclass
from typing import Any

_HEADER = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of user code or of a file, in words that survive the process.

    ``kind`` is the exception's type, pickled (by reference), ``None`` if it cannot be. ``text`` is
    the message with the worker's traceback. ``position`` is the sample's in the mini-batch, -1 when
    the failure belongs to no sample.
    """

    kind: bytes | None
    text: str
    position: int


@dataclass(frozen=True, slots=True)
class TinyBatchFailed:
    """A tiny-batch ended in an exception."""

    sequence: int
    tiny_batch: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class SampleSkipped:
    """A bad sample was left out or replaced, as ``on_error`` asks."""

    sequence: int
    row: int
    replaced_by: int | None
    failure: Failure


@dataclass(frozen=True, slots=True)
class SamplesSpilled:
    """The samples of a tiny-batch, which do not fit the layout, pickled."""

    sequence: int
    tiny_batch: int
    samples: bytes


@dataclass(frozen=True, slots=True)
class LayoutFound:
    """What the first sample looks like: a layout, or the reason why there is none."""

    layout: Any


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The worker cannot begin or go on: ``worker_init_fn`` raised, or the device was lost."""

    failure: Failure
    short_of_memory: bool = False  # memory ran out: with less to do it may start


@dataclass(frozen=True, slots=True)
class DatasetChanged:
    """``worker_init_fn`` made the dataset another one than the plan is of."""


JobMessage = TinyBatchFailed | SampleSkipped | SamplesSpilled
"""About a mini-batch."""

Message = JobMessage | LayoutFound | WorkerFailed | DatasetChanged


def send(fd: int, message: Message) -> None:
    """Writes a message; blocks while the pipe is full, unless the loader has ended."""
    payload = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    rest = memoryview(_HEADER.pack(len(payload)) + payload)
    with contextlib.suppress(BrokenPipeError):
        while rest:
            rest = rest[os.write(fd, rest) :]


class Receiver:
    """The manager's end of one worker's pipe.

    Others may drain it at any time: threads that wait for the same worker, and finalizers, which
    run in the middle of any statement.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._buffer = bytearray()
        self._lock = threading.RLock()
        self._in_use = False
        os.set_blocking(fd, False)

    @property
    def partial(self) -> bool:
        """Whether a message has begun to arrive and is not whole."""
        return bool(self._buffer)

    def drain(self) -> None:
        """Empties the pipe, so that nobody waits to write; what came is for ``receive``.

        Not if that is being done: what is read first has to be kept first.
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
            while self.fd >= 0 and (chunk := os.read(self.fd, 1 << 20)):
                self._buffer += chunk
        except BlockingIOError:
            pass
        finally:  # also by Ctrl-C
            self._in_use = False

    def receive(self) -> list[Message]:
        """Returns the messages that are there, without waiting for more."""
        with self._lock:
            self._read()
            if not self._buffer:
                return []
            self._in_use = True
            try:
                pickled = self._take_whole()
            finally:
                self._in_use = False
        return [pickle.loads(message) for message in pickled]

    def _take_whole(self) -> list[bytes]:
        messages = []
        while len(self._buffer) >= _HEADER.size:
            (size,) = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + size
            if len(self._buffer) < end:
                break
            messages.append(bytes(memoryview(self._buffer)[_HEADER.size : end]))
            del self._buffer[:end]
        return messages

    def wait(self, seconds: float) -> None:
        """Sleeps until more of a message is there."""
        poll = select.poll()  # select() knows no descriptors from 1024 on
        poll.register(self.fd, select.POLLIN)
        poll.poll(seconds * 1000)

    def close(self) -> None:
        """Closes the descriptor."""
        with self._lock:  # nobody reads what has its number next
            fd, self.fd = self.fd, -1
            if fd >= 0:
                os.close(fd)
