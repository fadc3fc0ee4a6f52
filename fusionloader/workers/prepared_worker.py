"""A CPU worker for a wholly compiled plan in a process like torch's, where user code runs once.

``worker_init_fn``, or the training script that multiprocessing imports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fusionloader import _native
from fusionloader.plan.stages import Plan
from fusionloader.sources.datasets import compile_dataset
from fusionloader.workers import failures, messages, native_worker
from fusionloader.workers.native_worker import NativeWorkerConfig
from fusionloader.workers.preparation import prepare_process
from fusionloader.workers.processes import Descriptor, leave_with

Info = tuple[int, int, Any, Callable[[int], Any] | None]
"""Number of workers, base seed, dataset, worker_init_fn."""


def main(config: NativeWorkerConfig, descriptors: dict[str, Descriptor], info: Info) -> None:
    """Prepares the process as torch does, then serves as a native worker.

    If the user code changes what the plan was made of, the worker says so and ends.
    """
    fds: dict[str, Any] = {name: descriptor.fd for name, descriptor in descriptors.items()}
    config = replace(config, **fds)
    leave_with(config.parent)
    if prepare(config, info):
        native_worker.main(config)


def prepare(config: NativeWorkerConfig, info: Info) -> bool:
    """Prepares the process and tells whether the plan still holds, the manager where not."""
    workers, base_seed, dataset, init = info
    last: messages.Message
    try:
        before = None if init is None else _samples(dataset, config.plan)
        prepare_process(config.worker, workers, base_seed, dataset, init)
        unchanged = init is None or _same(before, _samples(dataset, config.plan))
        last = messages.DatasetChanged()
    except Exception as error:
        where = f"in DataLoader worker process {config.worker}"
        last = messages.WorkerFailed(failures.capture(error, where))
        unchanged = False
    if not unchanged:
        messages.send(config.message_fd, last)
        _native.WorkerQueue(config.control_fd, config.data_fd, config.worker).wake_manager()
    return unchanged


def _samples(dataset: Any, plan: Plan) -> tuple[Any, ...] | None:
    """Returns images and targets of a dataset that ``plan`` is the whole plan of, else nothing."""
    compiled = compile_dataset(dataset, plan.decode, plan.strict)
    if not compiled.complete or compiled.plan != plan:
        return None
    if compiled.kind == "pixels":
        arrays = compiled.arrays(dataset)
        return arrays.images.copy(), arrays.targets.copy()
    return (list(compiled.samples(dataset)),) if compiled.kind == "folder" else None


def _same(before: tuple[Any, ...] | None, after: tuple[Any, ...] | None) -> bool:
    if before is None or after is None or len(before) != len(after):
        return False
    if len(before) == 1:
        return bool(before == after)
    return all(map(np.array_equal, before, after))
