"""A GPU worker that is never built, and training that starts it and waits."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

from fusionloader.gpu import worker
from fusionloader.system.processes import BareProcess
from support.control_blocks import ControlBlock


def main(config: SimpleNamespace) -> None:
    """The worker's process."""

    def build(*_: Any) -> None:
        time.sleep(3600)

    worker.GpuWorkerLoop = build  # type: ignore[assignment,misc]
    worker.main(config)  # type: ignore[arg-type]


def train() -> None:
    """The training process: prints the worker's pid once that is being built."""
    block = ControlBlock(1)
    fds = block.control_fd, block.arena.fd
    config = SimpleNamespace(
        parent=os.getpid(), control_fd=fds[0], data_fd=fds[1], worker=0, message_fd=-1
    )
    process = BareProcess("support.slow_gpu_worker", config, fds)
    while block.manager.worker(0).pid == 0:
        time.sleep(0.01)
    print(process.pid, flush=True)
    time.sleep(3600)
