"""Samples that are made in Python: the user's dataset, or a compiled plan with a Python tail."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from fusionloader.executors.layout import Layout
from fusionloader.executors.python import SampleKey, Source
from fusionloader.gpu.control import GpuOptions
from fusionloader.iterators.backend import (
    NO_ITEM,
    Starter,
    WorkerBackend,
    context_of,
    of_pool,
    parent_of,
)
from fusionloader.pool.pool_processes import Payload
from fusionloader.pool.user_code import UserCode
from fusionloader.ranks.sharing_offer import SharingOffer
from fusionloader.workers import processes, python_worker
from fusionloader.workers.processes import Descriptor, Process


class PythonBackend:
    """Workers run Python: the user's dataset, or a compiled plan with a Python tail."""

    layout: Layout | None = None
    gpu: GpuOptions | None = None
    sharing_offer: SharingOffer | None = None
    single_threaded = False  # user code may have threads of its own

    def __init__(self, source: Source, no_layout: Callable[[str], None]) -> None:
        self._source = source
        self.count = source.count()
        self.no_layout = no_layout

    def of_workers_dataset(self) -> WorkerBackend:
        """Returns this: every worker looks at the dataset that it has."""
        return self

    def epoch_ended(self) -> None:
        """Has nothing to do then."""

    def name(self, index: Any) -> str:
        """Returns a sample's name for messages."""
        return self._source.name(SampleKey(index, 0, 0, 0, 0))

    def describe(self, indices: list[Any]) -> tuple[list[int], list[int], bytes]:
        """Returns plain indices as they are, others pickled; rows in the sampler's order."""
        rows = list(range(len(indices)))
        if all(type(index) is int and -(1 << 63) <= index < 1 << 63 for index in indices):
            return indices, rows, b""
        return [NO_ITEM] * len(indices), rows, pickle.dumps(indices)

    def starter(self, loader: Any, base_seed: int) -> Starter:
        """Returns a function that starts the user's code in a multiprocessing process."""
        init, on_error = loader.worker_init_fn, loader.on_error
        source = self._source
        if loader.pool is not None:
            code = UserCode(loader.num_workers, source, base_seed, init, on_error)
            return of_pool(Payload((code, None), {}, user_code=True))
        context, method = context_of(loader)

        def start(manager: Any, number: int, message_fd: int) -> Process:
            config = python_worker.PythonWorkerConfig(
                worker=number,
                workers=manager.worker_count,
                parent=parent_of(method),
                control=Descriptor(manager.control_fd),
                data=Descriptor(manager.arena.fd),
                message=Descriptor(message_fd),
                source=source,
                base_seed=base_seed,
                worker_init_fn=init,
                on_error=on_error,
            )
            return processes.start(context, python_worker.main, config)

        return start
