"""How far the mini-batches in flight are."""

from __future__ import annotations

import itertools

from fusionloader import _native
from fusionloader.manager.mini_batches import Job


class InFlight:
    """A queue's published mini-batches, in order; ``jobs`` is the manager's list of them."""

    def __init__(self, queue: _native.ManagerQueue, jobs: list[Job]) -> None:
        self._queue = queue
        self._jobs = jobs

    @property
    def wanted(self) -> int:
        """Those that somebody waits for."""
        return sum(not job.discarded for job in self._jobs)

    @property
    def pending(self) -> bool:
        """Whether there is one that somebody waits for."""
        return any(not job.discarded for job in self._jobs)

    @property
    def completed(self) -> int:
        """Tiny-batches that are complete."""
        wanted = [job for job in self._jobs if not job.discarded]
        return sum(self._queue.status(job.descriptor.number).completed for job in wanted)

    @property
    def ready(self) -> int:
        """Mini-batches that could be delivered now, in order."""
        wanted = [job for job in self._jobs if not job.discarded]
        return sum(1 for _ in itertools.takewhile(self._is_done, wanted))

    def done(self, in_order: bool) -> Job | None:
        """Returns one that can be delivered; with ``in_order`` no other than the oldest."""
        for job in self._jobs:
            if job.discarded:
                continue
            if self._is_done(job):
                return job
            if in_order:
                return None
        return None

    def _is_done(self, job: Job) -> bool:
        return self._queue.status(job.descriptor.number).done
