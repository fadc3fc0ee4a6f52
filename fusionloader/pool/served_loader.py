"""One of the loaders that a pool's worker serves."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fusionloader import _native


class LoaderWorker(Protocol):
    """What works for one loader."""

    queue: _native.WorkerQueue

    def serve(self, once: bool = False) -> _native.WorkerEvent:
        """Works until there is nothing to do, until it is sent elsewhere, or for one claim."""

    def rest(self, seen: int) -> None:
        """Sleeps until there may be something to do, since the queue's word was ``seen``."""


def _nothing() -> None:
    pass


@dataclass(slots=True, eq=False)
class ServedLoader:
    """The worker of one loader, and how the process becomes that loader's and ceases to be.

    ``fds`` are those of the loader's memory, which the worker refers to.
    """

    worker: LoaderWorker
    fds: tuple[int, ...] = ()
    enter: Callable[[], None] = _nothing
    leave: Callable[[], None] = _nothing

    def close(self) -> None:
        """Lets go of the loader's memory."""
        del self.worker
        close_all(self.fds)


def close_all(fds: tuple[int, ...]) -> None:
    """Closes descriptors."""
    for fd in fds:
        os.close(fd)
