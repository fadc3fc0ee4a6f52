"""A GPU worker that is never built, and training that starts it and waits."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

from fusionloader import _native
from fusionloader.gpu import worker
from fusionloader.system.processes import BareProcess
from fusionloader.system.shm import objects
from fusionloader.system.shm.slots import Arena


def main(config: SimpleNamespace) -> None:
    """The worker's process."""

    def build(*_: Any) -> None:
        time.sleep(3600)

    worker.GpuWorkerLoop = build  # type: ignore[assignment,misc]
    worker.main(config)  # type: ignore[arg-type]


def train() -> None:
    """The training process: prints the worker's pid once that is being built."""
    control_fd, arena = objects.create(_native.ManagerQueue.control_bytes(1, 4)), Arena()
    queue = _native.ManagerQueue(control_fd, arena.fd, 1, 4)
    config = SimpleNamespace(
        parent=os.getpid(), control_fd=control_fd, data_fd=arena.fd, worker=0, message_fd=-1
    )
    process = BareProcess("support.slow_gpu_worker", config, (control_fd, arena.fd))
    while queue.worker(0).pid == 0:
        time.sleep(0.01)
    print(process.pid, flush=True)
    time.sleep(3600)
