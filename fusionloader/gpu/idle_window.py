"""A time in which training leaves the device alone without waiting for a batch."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING

from fusionloader import _native

if TYPE_CHECKING:
    from fusionloader.gpu.control import GpuControl

# What is asked for at the end is back that much later.
_SLEEP_SECONDS = 0.01


class IdleWindow:
    """Lets a GPU worker in temporal sharing work, with training's free memory, within a block.

    A thread does what a waiting ``next()`` would, which must not be called within the block.
    """

    def __init__(self, control: GpuControl, queue: _native.ManagerQueue) -> None:
        self._control = control
        self._queue = queue
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, name="fusionloader-memory-idle window", daemon=True
        )

    def __enter__(self) -> IdleWindow:
        self._control.asked()  # in this thread: on its current stream
        self._thread.start()
        return self

    def _serve(self) -> None:
        while not self._over.is_set():
            seen = self._queue.done_word()
            self._control.waits()
            self._queue.sleep(seen, _SLEEP_SECONDS)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self._control.waited()
        self._control.busy()
