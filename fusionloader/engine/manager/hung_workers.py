"""Workers that make no progress while a batch is waited for are ended; others do their work.

A worker that is at the same sample for ``stall_timeout`` seconds hangs: in a read of a file system
that has gone away, in a deadlock of user code. One that is stopped (SIGSTOP) is ended, too,
wherever it was: it may hold a tiny-batch that it has not begun. Only time in which the manager
looks is counted, so that a job that is suspended as a whole, as batch systems do, goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from fusionloader import _native
from fusionloader.system.processes import is_stopped

_MOST_SECONDS_BETWEEN = 1.0
_DEATH_SECONDS = 10.0


@dataclass(slots=True)
class _Watched:
    """What a worker was at, and for how long it has been watched there."""

    at: object
    seconds: float = 0.0
    killed: bool = False


class Watchable(Protocol):
    """Workers of one manager."""

    def local_records(self) -> Iterable[tuple[int, _native.WorkerSnapshot]]:
        """Yields what the workers on this machine are at, with their numbers."""

    def kill(self, number: int, pid: int, why: str) -> None:
        """Kills one of these; ``why`` completes "worker ..."."""


class HungWorkers:
    """Watches the workers of a manager that run on this machine."""

    def __init__(
        self,
        workers: Watchable,
        timeout: float,
        where: Callable[[_native.WorkerSnapshot], str],
    ) -> None:
        """``timeout`` in seconds, 0: none; ``where`` returns the sample's name, if it is known."""
        self._workers, self._timeout, self._where = workers, timeout, where
        self._every = min(_MOST_SECONDS_BETWEEN, timeout / 4)
        self._looked = time.monotonic()
        self._watched: dict[int, _Watched] = {}  # by number

    def look(self) -> None:
        """Kills who hangs; to be called while a batch is waited for.

        Raises:
            RuntimeError: one that was killed does not end.
        """
        if not self._timeout:
            return
        now = time.monotonic()
        passed = now - self._looked
        if passed < self._every:
            return
        self._looked = now
        for number, record in self._workers.local_records():
            self._watch(number, record, min(passed, 2 * self._every))

    def _watch(self, number: int, record: _native.WorkerSnapshot, seconds: float) -> None:
        place = _place(record)
        watched = self._watched.get(number)
        if place is None or watched is None or watched.at != place:
            self._watched[number] = _Watched(place)
            return
        watched.seconds += seconds
        if watched.killed and watched.seconds >= _DEATH_SECONDS:
            raise RuntimeError(
                f"DataLoader worker (pid {record.pid}) makes no progress{self._at(record)}, and "
                f"has not ended {_DEATH_SECONDS:g} s after it was killed: it waits in the kernel, "
                "as for a disk or a file system that does not answer. Its samples cannot be given "
                "to another worker"
            )
        if not watched.killed and watched.seconds >= self._timeout:
            watched.killed, watched.seconds = True, 0.0
            why = f"made no progress for {self._timeout:g} s (stall_timeout){self._at(record)}"
            self._workers.kill(number, record.pid, why)

    def _at(self, record: _native.WorkerSnapshot) -> str:
        name = "" if record.sequence is None else self._where(record)
        stopped = " while stopped by a signal" if is_stopped(record.pid) else ""
        return stopped + (f" at {name}" if name else "")


def _place(record: _native.WorkerSnapshot) -> object:
    """Returns what a worker is at; ``None`` for one that may be idle for as long as it likes."""
    if not record.pid:
        return None  # it has not begun: worker_init_fn may take its time
    if record.sequence is not None:
        return record.pid, record.sequence, record.position, record.since_seconds
    return (record.pid, record.samples) if is_stopped(record.pid) else None
