"""How a loader's samples are made: what the slot iterator asks, whoever answers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import torch

from fusionloader.executors.layout import Layout
from fusionloader.gpu.control import GpuOptions
from fusionloader.pool.pool_processes import Payload
from fusionloader.ranks.sharing_offer import SharingOffer
from fusionloader.workers.processes import Process

Starter = Callable[[Any, int, int], Process]
"""Starts worker number ``n`` of a manager, sending its messages to a descriptor."""

NO_ITEM = -1


class WorkerBackend(Protocol):
    """What the slot iterator needs to know of the samples.

    ``single_threaded``: a worker runs one thread, so that it gains from a dedicated core.
    """

    layout: Layout | None
    count: int
    gpu: GpuOptions | None
    sharing_offer: SharingOffer | None
    single_threaded: bool

    def name(self, index: Any) -> str:
        """Returns a sample's name for messages."""

    def describe(self, indices: list[Any]) -> tuple[list[int], list[int], bytes]:
        """Returns items for the workers, rows smallest sample first, and pickled indices."""

    def starter(self, loader: Any, base_seed: int) -> Starter:
        """Returns the function that starts a worker."""

    def no_layout(self, why: str) -> None:
        """Notes that the samples cannot be written row by row."""

    def epoch_ended(self) -> None:
        """Called when the last batch of an epoch was delivered."""

    def of_workers_dataset(self) -> WorkerBackend:
        """Returns the backend for workers whose ``worker_init_fn`` changes the dataset."""


def refuse_pool(loader: Any, why: str) -> None:
    """Raises ValueError for a loader of a pool that has to be served in whole batches.

    Those are made by processes of torch's, which would come on top of the pool's.
    """
    if loader.pool is not None:
        raise ValueError(
            "a WorkerPool serves loaders sample by sample, and this one is served in whole "
            f"batches: {why}. Give it workers of its own: num_workers=... instead of pool=..."
        )


def of_pool(payload: Payload) -> Starter:
    """Returns the function by which a loader has a pool's workers instead of its own."""

    def start(manager: Any, number: int, message_fd: int) -> Process:
        fds = {"message_fd": message_fd}
        if manager.membership is not None:
            fds["event_fd"] = manager.membership.event_fd
        process: Process = manager.pool_binding.start(number, fds, payload)
        return process

    return start


def context_of(loader: Any) -> tuple[Any, str]:
    """Returns the multiprocessing context of a loader's workers, and its start method."""
    context = loader.multiprocessing_context
    if context is None:
        context = torch.multiprocessing.get_context()
    return context, str(context.get_start_method())


def parent_of(method: str) -> int:
    """Returns the pid that workers watch, 0 for "whoever starts you" (a fork server)."""
    return 0 if method == "forkserver" else os.getpid()
