"""The GPU worker as a thread of the training process: no second context, and no memory to share.

How it works. The thread runs the loop of ``gpu.worker``; to the control it looks like a process. It
cannot be killed. So whatever it does to what others see (claims, states, rows) it does inside its
fence, and the rest (reading files, decoding) outside. Who gives it up closes the fence.

Why it is right. The fence is a lock, held within, and a flag that is set under the lock and looked
at on the way in. Once it is closed the thread is outside and never gets in again: its tiny-batches
can be taken back, and their rows written by others. Where the thread hangs within the fence, as in
a kernel that writes rows, the fence cannot be closed; then nothing is taken back, and the batch
waits.

A fork copies locks as they are, those of modules that are being imported, too. So forks of this
process wait while such a thread is being built, which is when it imports.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from fusionloader import _native
from fusionloader._native import cuda
from fusionloader.gpu.worker import GpuWorkerConfig, GpuWorkerLoop, failure_of
from fusionloader.system.gpu_memory.errors import MemorySharingError
from fusionloader.system.processes import ForkLock
from fusionloader.workers import messages

log = logging.getLogger("fusionloader.gpu")

_CLOSE_SECONDS = 1.0  # for what the thread is at within the fence, if it does not hang there
_being_built = ForkLock(60.0)  # seconds that a fork waits at most: building may hang, too


class GivenUp(Exception):
    """The fence is closed: the thread has nothing more to do here."""


class Fence:
    """Around everything of a thread that others see."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Within it the fence stays open.

        Raises:
            GivenUp: it is closed.
        """
        with self._lock:
            if self._closed:
                raise GivenUp
            yield

    def close(self, seconds: float) -> bool:
        """Lets nothing in any more; returns whether that was possible within so many seconds."""
        if not self._lock.acquire(timeout=seconds):
            return False
        self._closed = True
        self._lock.release()
        return True


class WorkerThread:
    """A GPU worker's thread, with the face of a process."""

    def __init__(self, config: GpuWorkerConfig) -> None:
        """Starts it; the descriptors of ``config`` are duplicated, for it may outlive them."""
        fds: dict[str, Any] = {name: os.dup(fd) for name, fd in config.descriptors().items()}
        weakref.finalize(self, _close, list(fds.values()))  # not before the thread ends
        self._config = replace(config, **fds)
        self._fence = Fence()
        self._given_up = self._ended = self._failed = False
        self._entering = _stream_of(config.device_id)
        self._thread = threading.Thread(
            target=self._run, name="fusionloader-gpu-worker", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        config = self._config
        loop: GpuWorkerLoop | None = None
        try:
            with self._entering():
                queue = _native.WorkerQueue(
                    config.control_fd, config.data_fd, config.worker, gpu=True
                )
                queue.announce(os.getpid())
                with _being_built.lock:
                    loop = GpuWorkerLoop(config, queue, self._fence.inside)
                loop.announce()
                loop.serve(lambda: True)
        except GivenUp:
            self._close_late(loop)
        except BaseException as error:  # also SystemExit: nobody else would hear of it
            self._failed = True
            _wait_for_device(config.device_id)
            messages.send(config.message_fd, failure_of(error))
            self._ended = True  # what it had can be done by others: it writes nothing any more
            self._close_late(loop)

    def _close_late(self, loop: GpuWorkerLoop | None) -> None:
        """Ends the decoder when nobody waits for that, as it may hang."""
        if loop is not None:
            with contextlib.suppress(Exception):
                loop.close()

    @property
    def pid(self) -> int | None:
        """It has none of its own."""
        return None

    @property
    def exitcode(self) -> int | None:
        """0 if it ended by itself, else 1; ``None`` while it runs."""
        return None if self.is_alive() else int(self._failed or self._given_up)

    def is_alive(self) -> bool:
        """Whether it works, or may still."""
        return self._thread.is_alive() and not self._ended and not self._given_up

    def join(self, timeout: float | None = None) -> None:
        """Waits until it has ended, at most ``timeout`` seconds, unless it works no more."""
        if self.is_alive():
            self._thread.join(timeout)

    def terminate(self) -> None:
        """See ``kill``."""
        self.kill()

    def kill(self) -> None:
        """Gives it up if it is where it can do no harm; else it stays, and is warned of."""
        if not self.is_alive():
            return
        if not self._fence.close(_CLOSE_SECONDS):
            log.warning(
                "the GPU worker's thread hangs while it writes rows of a batch, which waits for "
                'it: nothing else could be sure of that memory. GpuWorker(where="process") has '
                "one that can be killed"
            )
            return
        self._given_up = True
        why = (
            "its thread did not answer, and was given up where it can write nothing any more. "
            'GpuWorker(where="process") has one that can be killed and started again'
        )
        failure = messages.WorkerFailed(messages.Failure(None, why, -1), is_final=True, summary=why)
        if messages.can_send(self._config.message_fd):  # this thread is the one that reads
            messages.send(self._config.message_fd, failure)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


# ---- the device ------------------------------------------------------------------------------


def _stream_of(device_id: int | None) -> Callable[[], AbstractContextManager[object]]:
    """Returns what the thread enters: a stream of its own behind what training has enqueued."""
    if device_id is None:
        return nullcontext
    import torch

    stream = torch.cuda.Stream(device_id)  # type: ignore[no-untyped-call]  # of the lowest priority
    stream.wait_stream(torch.cuda.current_stream(device_id))

    def enter() -> AbstractContextManager[object]:
        relax_captures(device_id)
        torch.cuda.set_device(device_id)  # of this thread, also when the stream is left
        return torch.cuda.stream(stream)

    return enter


def relax_captures(device_id: int) -> None:
    """Lets calls of this thread be while training captures a CUDA graph, which they would end."""
    try:
        cuda.relax_captures(device_id)
    except MemorySharingError as error:
        log.warning(
            "the GPU worker's thread may disturb the capture of CUDA graphs: %s; "
            'GpuWorker(where="process") does not',
            error,
        )


def _wait_for_device(device_id: int | None) -> None:
    """Waits for what the thread has launched: its rows are written by others next."""
    if device_id is not None:
        import torch

        with contextlib.suppress(Exception):  # a lost device writes nothing either
            torch.cuda.synchronize(device_id)
