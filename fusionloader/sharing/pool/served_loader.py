"""One of the loaders that a worker of a pool serves."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusionloader.workers.native_worker import NativeWorker
    from fusionloader.workers.python_worker import PythonWorker


def _nothing() -> None:
    pass


@dataclass(slots=True, eq=False)
class ServedLoader:
    """A loader's worker, and how to switch the process's state to that loader and back.

    Attributes:
        worker: serves the loader.
        fds: descriptors of the loader's memory, which the worker maps.
        activate: called before the worker serves after another loader's did.
        deactivate: called before another loader's worker serves.
        batch_requested: called when the loader waits for a batch, if it is a background loader.
        background: whether it is served only while no other loader has work.
    """

    worker: NativeWorker | PythonWorker
    fds: tuple[int, ...] = ()
    activate: Callable[[], None] = _nothing
    deactivate: Callable[[], None] = _nothing
    batch_requested: Callable[[], None] = _nothing
    background: bool = False

    def close(self) -> None:
        """Unmaps the loader's memory."""
        self.worker.close()
        del self.worker
        close_all(self.fds)


def close_all(fds: tuple[int, ...]) -> None:
    """Closes descriptors."""
    for fd in fds:
        os.close(fd)
