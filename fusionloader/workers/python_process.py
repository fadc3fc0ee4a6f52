"""The process of a Python worker: prepared as torch prepares its workers, then at work."""

from __future__ import annotations

import os

from fusionloader import _native
from fusionloader.workers import messages, rank_reads, sample_errors
from fusionloader.workers.batch_worker import BatchWorker, Collating
from fusionloader.workers.preparation import prepare_process
from fusionloader.workers.python_assignments import PythonAssignments
from fusionloader.workers.python_worker import PythonWorker, PythonWorkerConfig


def main(config: PythonWorkerConfig) -> None:
    """Serves until the manager stops the queue or the training process has ended."""
    worker = prepared(config)
    if worker is not None:
        worker.serve()


def prepared(
    config: PythonWorkerConfig, pool: _native.WorkerQueue | None = None
) -> PythonWorker | None:
    """Prepares the process as torch does and returns its worker.

    On an error it sends the manager the failure and returns ``None``. ``pool`` is the queue of the
    pool that the worker belongs to, if any.
    """
    try:
        if config.address:
            rank_reads.watch()  # worker_init_fn, too
        seeding = prepare_process(
            config.worker,
            config.workers,
            config.base_seed,
            config.source.dataset,
            config.worker_init_fn,
        )
        source = config.source if config.worker_init_fn is None else config.source.renewed()
        source.seeding = seeding
        queue = _native.WorkerQueue(config.control.fd, config.data.fd, config.worker)
        if config.whole is None:
            worker = PythonWorker(config, source, queue, pool)
        elif isinstance(config.whole, Collating):
            worker = BatchWorker(config, source, queue, pool, config.whole)
        else:
            from fusionloader.workers.stream_worker import StreamWorker

            worker = StreamWorker(config, source, queue, pool, config.whole)
        if config.address and not worker.uses_generators:
            worker.sharing = PythonAssignments(worker, pool is not None)
        queue.announce(os.getpid())
        return worker
    except Exception as error:
        failure = sample_errors.capture(error, f"in DataLoader worker process {config.worker}")
        messages.send(config.message.fd, messages.WorkerFailed(failure))
        queue = _native.WorkerQueue(config.control.fd, config.data.fd, config.worker)
        queue.wake_manager()
        return None
