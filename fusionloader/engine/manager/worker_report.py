"""Which worker is at which sample, in words: for warnings and for timeouts."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from fusionloader import _native
from fusionloader.engine.manager.in_flight import InFlight
from fusionloader.options.aliases import Index


def worker_report(
    workers: Iterable[tuple[int, _native.WorkerSnapshot]],
    in_flight: InFlight,
    name: Callable[[Index], str],
    now: float,
    first_guest_slot: int,
    elsewhere: Container[int] = (),
) -> str:
    """Returns what each worker is at.

    Args:
        workers: what they are at, with their numbers.
        in_flight: the mini-batches.
        name: returns a sample's name from its index.
        now: ``CLOCK_MONOTONIC``, in seconds.
        first_guest_slot: number of the first slot for workers of other ranks.
        elsewhere: numbers of those that are at other loaders of their pool.
    """
    places = []
    for number, worker in workers:
        sample = sample_name(worker, in_flight, name)
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


def sample_name(
    worker: _native.WorkerSnapshot, in_flight: InFlight, name: Callable[[Index], str]
) -> str:
    """Returns the name of the sample that a worker is at, empty where there is none."""
    job = None if worker.sequence is None else in_flight.find(worker.sequence)
    if job is None or worker.position >= len(job.rows):
        return ""
    return job.named(job.rows[worker.position], name)
