"""A CPU worker for a wholly compiled plan in a process like torch's, where user code runs once.

``worker_init_fn``, or the training script that multiprocessing imports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fusionloader import _native
from fusionloader.runtime import failures, light_worker, messages, object_worker
from fusionloader.runtime.light_worker import LightWorkerConfig
from fusionloader.runtime.processes import Descriptor, leave_with

Info = tuple[int, int, Any, Callable[[int], Any] | None]
"""Number of workers, base seed, dataset, worker_init_fn."""


def main(config: LightWorkerConfig, descriptors: tuple[Descriptor, ...], info: Info) -> None:
    """Prepares the process as torch does, then serves as a light worker."""
    control, data, table, message = (descriptor.fd for descriptor in descriptors)
    config = replace(config, control_fd=control, data_fd=data, table_fd=table, message_fd=message)
    workers, base_seed, dataset, init = info
    leave_with(config.parent)
    try:
        object_worker.prepare_process(config.worker, workers, base_seed, dataset, init)
    except Exception as error:
        where = f"in DataLoader worker process {config.worker}"
        messages.send(message, messages.WorkerFailed(failures.capture(error, where)))
        _native.WorkerQueue(control, data, config.worker).wake_manager()
        return
    light_worker.main(config)
