"""Which worker is at which sample, in words: for warnings and for timeouts."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any

from fusionloader.aliases import Index
from fusionloader.manager.in_flight import InFlight

Record = tuple[Any, ...]
"""Of a worker, as ``ManagerQueue.records`` gives it."""


def worker_report(
    records: Iterable[tuple[int, Record]],
    in_flight: InFlight,
    name: Callable[[Index], str],
    now: float,
    first_guest_slot: int,
    elsewhere: Container[int] = (),
) -> str:
    """Returns what each worker is at.

    Args:
        records: of the workers, with their numbers.
        in_flight: the mini-batches.
        name: returns a sample's name from its index.
        now: ``CLOCK_MONOTONIC``, in seconds.
        first_guest_slot: the number from which on workers of other ranks sit, or nobody.
        elsewhere: numbers of those that are at other loaders of their pool.
    """
    places = []
    for number, (pid, sequence, _, position, since, *_) in records:
        job = in_flight.find(sequence - 1)
        if job is None and number >= first_guest_slot:
            continue
        who = f"worker {number} (pid {pid})" if pid else f"worker {number}"
        if job is not None and position < len(job.rows):
            sample = name(job.indices[job.rows[position]])
            places.append(f"{who} at {sample} for {now - since:.1f} s")
        elif number in elsewhere:
            places.append(f"{who} is at a sample of another loader of the pool")
        else:
            places.append(f"{who} is idle" if pid else f"{who} has not begun")
    return "; ".join(places)
