"""Whole batches in page-locked memory: a thread copies them while training computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait

from torch.utils.data._utils.pin_memory import pin_memory

from fusionloader.engine.manager.in_flight import Job
from fusionloader.options.aliases import Batch


class Pinning:
    """Copies the mini-batches that workers have made, each once, in the order of ``begin``."""

    def __init__(self, make: Callable[[Job], Batch], device: str | None) -> None:
        """``make`` returns a mini-batch; ``device`` is what torch's ``pin_memory`` takes."""
        self._make, self._device = make, device
        self._thread = ThreadPoolExecutor(1, "fusionloader-pin")  # starts with the first batch

    def begin(self, job: Job) -> None:
        """Has a mini-batch copied, unless it is on its way or has failed."""
        if job.pinned is None and job.spilled:
            job.pinned = self._thread.submit(_pinned, self._make, job, self._device)

    def batch(self, job: Job) -> Batch:
        """Waits for the copy of a mini-batch and returns it.

        Raises:
            Exception: what its making or its copying has raised.
        """
        self.begin(job)
        assert job.pinned is not None
        try:
            return job.pinned.result()
        except (MemoryError, OSError):
            job.pinned = None  # the next call tries again
            raise

    def leave(self, jobs: Iterable[Job]) -> None:
        """Waits until nothing reads mini-batches that nobody wants any more."""
        for job in jobs:
            if job.pinned is not None and not job.pinned.cancel():
                wait([job.pinned])


def _pinned(make: Callable[[Job], Batch], job: Job, device: str | None) -> Batch:
    return pin_memory(make(job), device)  # type: ignore[no-untyped-call]
