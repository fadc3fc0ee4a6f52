"""Starting of workers, shared by both backends, and checks of options that a route refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from multiprocessing.context import BaseContext

import torch

from fusionloader.engine.manager.options import StartWorker, WorkerConnection
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.sharing.pool.binding import PoolBinding
from fusionloader.sharing.pool.pool_processes import Payload, running
from fusionloader.system.processes import Process
from fusionloader.transforms.executors.batch_transport import Sends

MakeSends = Callable[[int], Sends]
"""Makes the channel through which the worker of a number sends whole batches."""


def refuse_for_own_passes(options: LoaderOptions, why: str) -> None:
    """Raises ValueError for options that do not work if workers iterate over the dataset.

    Workers of a pool change between loaders. ``on_error`` needs samples that fail one by one.
    """
    if options.pool is not None:
        raise ValueError(
            "a WorkerPool serves map-style datasets without a state, and not this loader's: "
            f"{why}. Give it other workers: num_workers=... instead of pool=..."
        )
    refuse_on_error(options, why)


def refuse_on_error(options: LoaderOptions, why: str) -> None:
    """Raises ValueError if ``on_error`` is set, but no sample can be left out or replaced."""
    if options.on_error != "raise":
        raise ValueError(
            f"on_error={options.on_error!r} needs samples that are made one by one, and this "
            f"loader has none: {why}. Catch the error in the dataset or the collate_fn, and leave "
            "on_error as it is"
        )


def bind_to_pool(options: LoaderOptions) -> PoolBinding | None:
    if options.pool is None:
        return None
    return PoolBinding(running(options.pool), options.pool.is_background)


def start_in_pool(
    binding: PoolBinding, payload: Payload, sends: MakeSends | None = None
) -> StartWorker:
    """Returns a function that makes a worker of a pool serve the loader.

    ``sends`` makes the channel for whole batches; ``None`` if workers make samples.
    """

    def start(connection: WorkerConnection) -> Process:
        fds = {"message_fd": connection.message_fd}
        if sends is not None:
            fds["batches_fd"] = sends(connection.number).memory.fd
        if connection.event_fd >= 0:
            fds["event_fd"] = connection.event_fd
        return binding.attach(connection.number, fds, payload)

    return start


def find_context(options: LoaderOptions) -> tuple[BaseContext, str]:
    """Returns the multiprocessing context of a loader's workers, and its start method.

    Raises:
        ValueError: the context starts threads, as that of MONAI's ``use_thread_workers`` does.
    """
    context = options.multiprocessing_context
    if context is None:
        context = torch.multiprocessing.get_context()
    kind = getattr(context, "Process", None)
    if isinstance(kind, type) and issubclass(kind, threading.Thread):
        raise ValueError(
            f"multiprocessing_context starts threads ({kind.__name__}), and FusionLoader's workers "
            "are processes. Give it 'fork', 'forkserver' or 'spawn', or use torch's DataLoader"
        )
    return context, str(context.get_start_method())
