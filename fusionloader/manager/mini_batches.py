"""Mini-batches in flight, as the local manager keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusionloader.delivery.device_ring import DeviceBuffer
from fusionloader.shm.slots import Slot
from fusionloader.workers import messages


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """A mini-batch as it is published.

    ``indices`` are what the batch sampler gave. ``items`` (numbers for the worker), ``keys`` and
    ``occurrences`` (for random draws) have an entry per index; ``rows`` gives the places in the
    batch in the order in which tiny-batches are cut. ``pickled`` are the indices where a number
    does not say everything.
    """

    indices: Sequence[Any]
    items: list[int]
    keys: list[int]
    occurrences: list[int]
    rows: list[int]
    seed: int
    epoch: int
    pickled: bytes = b""


@dataclass(slots=True, eq=False)
class Job:
    """A published mini-batch and what has become known about it."""

    batch: MiniBatch
    number: int
    sequence: int
    descriptor: Slot
    payload: Slot | None
    failures: list[messages.Failure] = field(default_factory=list)
    skipped: list[messages.SampleSkipped] = field(default_factory=list)
    spilled: dict[int, bytes] = field(default_factory=dict)
    deaths: dict[int, int] = field(default_factory=dict)
    discarded: bool = False
    device: DeviceBuffer | None = None


def job_of(jobs: Iterable[Job], sequence: int) -> Job | None:
    """Returns the one that was published under a number, if it is still in flight."""
    return next((job for job in jobs if job.sequence == sequence), None)
