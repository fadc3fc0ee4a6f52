"""Watches waits for batches: warns with a report of what workers do, and kills hung workers.

A worker that stays at the same sample for ``stall_timeout`` seconds hangs: in a read of a dead file
system, or in a deadlock of user code. It is killed, and another worker does its work. A worker that
is stopped (SIGSTOP) is killed too, even between samples: it may hold a tiny-batch that it has not
begun. Only time in which the manager looks is counted, so a job that a batch system suspends as a
whole goes on afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fusionloader.system.processes import is_stopped
from fusionloader.system.user_warnings import warn_user

# For type checkers only: whole batches are watched even if the native part is missing.
if TYPE_CHECKING:
    from fusionloader import _native
    from fusionloader.engine.manager.in_flight import InFlight

WARN_SECONDS = 60.0

_MOST_SECONDS_BETWEEN = 1.0
_DEATH_SECONDS = 10.0


class StallWatch:
    """Watches one wait for a batch: warns once, and may end the wait with an error."""

    def __init__(self, stall_timeout: float = 0) -> None:
        """``stall_timeout`` is the longest wait in seconds, 0 for no limit."""
        self._start = time.monotonic()
        self._warn_at = self._start + WARN_SECONDS
        self._stall_timeout = stall_timeout or float("inf")

    @property
    def waited(self) -> float:
        return time.monotonic() - self._start

    @property
    def seconds_left(self) -> float:
        """Seconds until ``check`` warns or raises; infinite if it will do neither."""
        return min(self._warn_at, self._start + self._stall_timeout) - time.monotonic()

    def check(self, report: Callable[[], str]) -> None:
        """Warns after ``WARN_SECONDS``, with the text of ``report``.

        Raises:
            RuntimeError: the wait has taken ``stall_timeout``.
        """
        if self.waited >= self._stall_timeout:
            raise RuntimeError(
                f"no progress for {self._stall_timeout:g} s (stall_timeout). {report()}. torch's "
                "workers are not replaced"
            )
        if time.monotonic() >= self._warn_at:
            self._warn_at = float("inf")
            warn_user(f"FusionLoader: no batch for {self.waited:.0f} s. {report()}")


# ---- what workers do ---------------------------------------------------------------------------


def worker_report(
    workers: Iterable[tuple[int, _native.WorkerSnapshot]],
    in_flight: InFlight,
    now: float,
    first_guest_slot: int,
    elsewhere: Container[int] = (),
) -> str:
    """Returns a text that says which sample each worker is at.

    Args:
        workers: numbers and records of the workers.
        in_flight: the mini-batches.
        now: ``CLOCK_MONOTONIC``, in seconds.
        first_guest_slot: number of the first slot for workers of other ranks.
        elsewhere: numbers of the workers that serve other loaders of their pool.
    """
    places = []
    for number, worker in workers:
        sample = sample_name(worker, in_flight)
        if not sample and number >= first_guest_slot:
            continue
        who = f"worker {number} (pid {worker.pid})" if worker.pid else f"worker {number}"
        if sample:
            places.append(f"{who} at {sample} for {now - worker.since_seconds:.1f} s")
        elif number in elsewhere:
            places.append(f"{who} is at a sample of another loader of the pool")
        else:
            places.append(f"{who} is idle" if worker.pid else f"{who} has not begun")
    return "; ".join(places)


def sample_name(worker: _native.WorkerSnapshot, in_flight: InFlight) -> str:
    """Returns the name of the sample that a worker is at; empty if it is at none."""
    job = None if worker.sequence is None else in_flight.find(worker.sequence)
    if job is None or worker.position >= len(job.rows):
        return ""
    return job.named(job.rows[worker.position])


# ---- hung workers ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Watched:
    """The last place of a worker, and the seconds for which it was seen there."""

    at: object
    seconds: float = 0.0
    killed: bool = False


class Watchable(Protocol):
    """The workers of one manager."""

    def local_records(self) -> Iterable[tuple[int, _native.WorkerSnapshot]]:
        """Yields numbers and records of the workers on this machine."""

    def kill(self, number: int, pid: int, why: str) -> None:
        """Kills one of these; ``why`` completes "worker ..."."""


class HungWorkers:
    """Watches the workers of a manager that run on this machine."""

    def __init__(
        self, workers: Watchable, timeout: float, where: Callable[[_native.WorkerSnapshot], str]
    ) -> None:
        """``timeout`` is in seconds, 0 for none; ``where`` returns the sample's name or ``""``."""
        self._workers, self._timeout, self._where = workers, timeout, where
        self._every = min(_MOST_SECONDS_BETWEEN, timeout / 4)
        self._looked = time.monotonic()
        self._watched: dict[int, _Watched] = {}  # by number

    def look(self) -> None:
        """Kills hung workers. Call it repeatedly while a batch is waited for.

        Raises:
            RuntimeError: a worker that was killed does not end.
        """
        if not self._timeout:
            return
        now = time.monotonic()
        passed = now - self._looked
        if passed < self._every:
            return
        self._looked = now
        # A longer gap is not the workers' time: this process was suspended, or did not wait.
        seconds = min(passed, 2 * self._every)
        for number, record in self._workers.local_records():
            self._watch(number, record, seconds)

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
    """Returns what identifies a worker's progress; ``None`` if it may be idle without limit."""
    if not record.pid:
        return None  # it has not begun: worker_init_fn may take long
    if record.sequence is not None:
        return record.pid, record.sequence, record.position, record.since_seconds
    return (record.pid, record.samples) if is_stopped(record.pid) else None
