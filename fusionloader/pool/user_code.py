"""Loaders that run user code in the workers of a pool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fusionloader import _native
from fusionloader.executors.python import Source
from fusionloader.pool.worker import Place
from fusionloader.workers.preparation import ProcessState
from fusionloader.workers.processes import Descriptor, run_anywhere
from fusionloader.workers.python_worker import ObjectWorkerConfig, prepared


@dataclass(frozen=True, slots=True)
class UserCode:
    """What is the same for all workers of a loader, see ``ObjectWorkerConfig``."""

    workers: int
    source: Source
    base_seed: int
    worker_init_fn: Callable[[int], Any] | None
    on_error: str


def place_of(
    code: UserCode, number: int, fds: dict[str, int], pool: _native.WorkerQueue
) -> Place | None:
    """Prepares this process for a loader; ``None`` where that fails, which the loader is told."""
    config = ObjectWorkerConfig(
        worker=number,
        workers=code.workers,
        parent=0,  # the pool's worker watches it
        control=Descriptor(fds["control_fd"]),
        data=Descriptor(fds["data_fd"]),
        message=Descriptor(fds["message_fd"]),
        source=code.source,
        base_seed=code.base_seed,
        worker_init_fn=code.worker_init_fn,
        on_error=code.on_error,
    )
    run_anywhere()  # user code may have threads of its own
    worker = prepared(config, pool)
    if worker is None:
        return None
    state = ProcessState(worker.uses_generators)
    return Place(worker, enter=state.restore, leave=state.keep)
