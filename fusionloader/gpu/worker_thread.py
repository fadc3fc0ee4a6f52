"""The GPU worker as a thread of the training process: no second context, and no memory to share.

How it works. The thread runs the loop of ``gpu.worker``, and has the interface of a process. It
cannot be killed. So it accesses shared state (claims, states, rows) only inside its fence, and
reads files and decodes outside. The control gives the thread up by closing the fence.

Why it is right. The fence is a lock that is held inside, and a flag that is set under the lock and
checked on entry. Once the fence is closed, the thread is outside and cannot enter again: its
tiny-batches can be taken back, and other workers can write their rows. If the thread hangs inside,
for example in a kernel that writes rows, the fence cannot be closed. Then nothing is taken back,
and the batch waits.

A fork copies locks in their current state, including those of modules that are being imported. So
forks of this process wait while such a thread is being built, which is when it imports.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from fusionloader import _native
from fusionloader._native import cuda
from fusionloader.gpu.worker import GpuWorkerConfig, GpuWorkerLoop, make_failure
from fusionloader.system.finalizers import Finalizer
from fusionloader.system.gpu_memory.errors import MemorySharingError
from fusionloader.system.processes import ForkLock
from fusionloader.workers import messages

log = logging.getLogger("fusionloader.gpu")

_CLOSE_SECONDS = 1.0  # longest wait until the thread leaves the fence
_being_built = ForkLock(60.0)  # longest wait of a fork, in seconds, since building may hang


class GivenUp(Exception):
    """Raised in the thread on entry to a closed fence."""


class Fence:
    """Encloses a thread's access to shared state."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Returns a block during which the fence cannot be closed.

        Raises:
            GivenUp: the fence is closed.
        """
        with self._lock:
            if self._closed:
                raise GivenUp
            yield

    def close(self, seconds: float) -> bool:
        """Closes the fence; returns ``False`` if the thread is still inside after ``seconds``."""
        if not self._lock.acquire(timeout=seconds):
            return False
        self._closed = True
        self._lock.release()
        return True


class WorkerThread:
    """A GPU worker's thread with the interface of a process."""

    def __init__(self, config: GpuWorkerConfig) -> None:
        """Starts the thread; it duplicates the descriptors of ``config``, which it may outlive."""
        fds: dict[str, Any] = {name: os.dup(fd) for name, fd in config.descriptors().items()}
        # Not before the thread ends, since the thread refers to this object.
        Finalizer(self, _close, list(fds.values()))
        self._config = replace(config, **fds)
        self._fence = Fence()
        self._given_up = self._ended = self._failed = False
        self._entering = _make_stream(config.device_id)
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
        except BaseException as error:  # SystemExit, too, which a thread ignores silently
            self._failed = True
            _wait_for_device(config.device_id)
            messages.send(config.message_fd, make_failure(error))
            self._ended = True  # it writes nothing more, so its tiny-batches can be taken back
            self._close_late(loop)

    def _close_late(self, loop: GpuWorkerLoop | None) -> None:
        """Closes the decoder after the control was informed, since closing may hang."""
        if loop is not None:
            with contextlib.suppress(Exception):
                loop.close()

    @property
    def pid(self) -> int | None:
        """``None``: a thread has no process id of its own."""
        return None

    @property
    def exitcode(self) -> int | None:
        """0 if the thread ended by itself, 1 if it failed; ``None`` while it runs."""
        return None if self.is_alive() else int(self._failed or self._given_up)

    def is_alive(self) -> bool:
        """Whether the thread may still access shared state."""
        return self._thread.is_alive() and not self._ended and not self._given_up

    def join(self, timeout: float | None = None) -> None:
        """Waits until the thread has ended, at most ``timeout`` seconds; at once if given up."""
        if self.is_alive():
            self._thread.join(timeout)

    def terminate(self) -> None:
        self.kill()

    def kill(self) -> None:
        """Gives the thread up if it is outside the fence, else logs a warning."""
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
        if messages.can_send(self._config.message_fd):  # a full pipe would block its own reader
            messages.send(self._config.message_fd, failure)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


# ---- the device ------------------------------------------------------------------------------


def _make_stream(device_id: int | None) -> Callable[[], AbstractContextManager[object]]:
    """Returns a context for the thread: a stream that begins behind training's enqueued work."""
    if device_id is None:
        return nullcontext
    import torch

    stream = torch.cuda.Stream(device_id)  # type: ignore[no-untyped-call]  # of the lowest priority
    stream.wait_stream(torch.cuda.current_stream(device_id))

    def enter() -> AbstractContextManager[object]:
        relax_captures(device_id)
        torch.cuda.set_device(device_id)  # holds for the thread even outside the stream
        return torch.cuda.stream(stream)

    return enter


def relax_captures(device_id: int) -> None:
    """Keeps CUDA calls of this thread from breaking training's capture of a CUDA graph."""
    try:
        cuda.relax_captures(device_id)
    except MemorySharingError as error:
        log.warning(
            "the GPU worker's thread may disturb the capture of CUDA graphs: %s; "
            'GpuWorker(where="process") does not',
            error,
        )


def _wait_for_device(device_id: int | None) -> None:
    """Waits for the thread's kernels, before other workers write to the same rows."""
    if device_id is not None:
        import torch

        with contextlib.suppress(Exception):  # a lost device writes nothing either
            torch.cuda.synchronize(device_id)
