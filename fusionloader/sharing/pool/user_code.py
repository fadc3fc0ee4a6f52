"""Loaders that run user code in the workers of a pool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fusionloader import _native
from fusionloader.data.deferred.sample_source import with_descriptors
from fusionloader.options.loader_options import OnError
from fusionloader.sharing.pool.served_loader import ServedLoader
from fusionloader.system.processes import restore_affinity
from fusionloader.system.shm.descriptor import Descriptor
from fusionloader.transforms.executors.batch_transport import Sends
from fusionloader.transforms.executors.python import Source
from fusionloader.workers.batch_worker import Collating
from fusionloader.workers.preparation import ProcessState
from fusionloader.workers.python_process import prepared
from fusionloader.workers.python_worker import PythonWorkerConfig


@dataclass(frozen=True, slots=True)
class UserCode:
    """The fields of ``PythonWorkerConfig`` that all workers of a loader share."""

    workers: int
    source: Source
    base_seed: int
    worker_init_fn: Callable[[int], Any] | None
    on_error: OnError
    whole: Collating | None
    address: str


def user_code_loader(
    code: UserCode, number: int, fds: dict[str, int], pool: _native.WorkerQueue
) -> ServedLoader | None:
    """Prepares this process for a loader; sends it a failure and returns ``None`` on an error."""
    config = PythonWorkerConfig(
        worker=number,
        workers=code.workers,
        control=Descriptor(fds["control_fd"]),
        data=Descriptor(fds["data_fd"]),
        message=Descriptor(fds["message_fd"]),
        source=with_descriptors(code.source, fds),
        base_seed=code.base_seed,
        worker_init_fn=code.worker_init_fn,
        on_error=code.on_error,
        event=Descriptor(fds.get("event_fd", -1)),
        address=code.address,
    )
    if code.whole is not None:
        sends = Sends(-1, Descriptor(fds["batches_fd"]), code.whole.most)
        config = replace(config, whole=code.whole._replace(sends=sends))
    restore_affinity()  # user code may start threads
    worker = prepared(config, pool)
    if worker is None:
        return None
    state = ProcessState(worker.uses_generators)
    return ServedLoader(
        worker, activate=state.restore, deactivate=state.save, batch_requested=worker.expect_layout
    )
