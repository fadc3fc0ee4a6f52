"""Starts native workers: by multiprocessing's methods, or as bare interpreters."""

from __future__ import annotations

import os
from dataclasses import replace
from multiprocessing.context import BaseContext

from fusionloader.engine.manager.options import StartWorker, WorkerConnection
from fusionloader.system import processes
from fusionloader.system.processes import Process
from fusionloader.system.shm import forks
from fusionloader.system.shm.descriptor import Descriptor
from fusionloader.workers import native_worker, prepared_worker
from fusionloader.workers.native_worker import NativeWorkerConfig
from fusionloader.workers.prepared_worker import Info

_MODULE = "fusionloader.workers.native_worker"


def native_starter(
    common: NativeWorkerConfig, context: BaseContext, method: str, info: Info | None
) -> StartWorker:
    """Returns a function that starts native workers.

    Args:
        common: configuration that all workers share.
        context: multiprocessing context.
        method: start method; unless it is ``"fork"``, a worker is a bare interpreter.
        info: for workers that run user code, so that their process is prepared as torch's are;
            ``None`` for others. The starter fills in the number of workers.
    """

    def start(connection: WorkerConnection) -> Process:
        config = replace(
            common,
            worker=connection.number,
            parent=processes.find_watched_pid(method),
            control_fd=connection.control_fd,
            data_fd=connection.data_fd,
            message_fd=connection.message_fd,
            event_fd=connection.event_fd,
        )
        fds, cpus = config.descriptors(), connection.cpus
        if info is not None:
            descriptors = {name: Descriptor(fd) for name, fd in fds.items()}
            filled = (connection.workers, *info[1:])
            main = prepared_worker.main
            return processes.start(context, main, config, descriptors, filled, cpus=cpus)
        if method == "fork":
            with forks.of_worker_without_user_code():
                return processes.start(context, native_worker.main, config, cpus=cpus)
        config = replace(config, parent=os.getpid())
        return processes.BareProcess(_MODULE, config, tuple(fds.values()), cpus=cpus)

    return start
