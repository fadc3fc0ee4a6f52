"""Copies batches that workers made whole to page-locked memory, in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from fusionloader.engine.manager.in_flight import Job
from fusionloader.options.aliases import Batch
from fusionloader.system.current_device import device_for_threads


class Pinning:
    """Copies each mini-batch once, in the order of ``begin``."""

    def __init__(self, make: Callable[[Job], Batch], device: str | None) -> None:
        """``make`` returns a mini-batch; ``device`` is what torch's ``pin_memory`` takes."""
        self._make, self._device = make, device
        begin = _begin_thread, (device_for_threads(),)
        self._thread = ThreadPoolExecutor(1, "fusionloader-pin", *begin)

    def begin(self, job: Job) -> None:
        """Starts the copy of a mini-batch, unless it has started or the mini-batch has failed."""
        if job.pinned is None and (job.spilled or job.is_in_payload):
            job.pinned = self._thread.submit(_pinned, self._make, job, self._device)

    def batch(self, job: Job) -> Batch:
        """Waits for the copy of a mini-batch and returns it.

        Raises:
            Exception: the error of making or copying the mini-batch.
        """
        self.begin(job)
        assert job.pinned is not None
        try:
            return job.pinned.result()
        except (MemoryError, OSError):
            job.pinned = None  # the next call tries again
            raise

    def leave(self, jobs: Iterable[Job]) -> None:
        """Cancels the copies of mini-batches, or waits for them, so that nothing reads these."""
        for job in jobs:
            if job.pinned is not None and not job.pinned.cancel():
                wait([job.pinned])


def _begin_thread(set_device: Callable[[], None]) -> None:
    """Begins as torch's thread does: copies on one core, the current device that of the caller."""
    torch.set_num_threads(1)
    set_device()


def _pinned(make: Callable[[Job], Batch], job: Job, device: str | None) -> Batch:
    return pin_memory(make(job), device)  # type: ignore[no-untyped-call]
