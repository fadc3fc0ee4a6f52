"""Options of the GPU worker's control, and the connections that a worker is started with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fusionloader.gpu.caching_allocator import TorchAllocator
from fusionloader.gpu.memory_lender import MemoryOptions
from fusionloader.system.processes import Process

if TYPE_CHECKING:
    from fusionloader.gpu.worker import SharedBuffer

StartGpuWorker = Callable[["Connections", int, int, int], Process]
"""Starts a worker: connections, number, descriptor for its messages, samples in a launch."""


@dataclass(frozen=True, slots=True)
class Connections:
    """What the worker shares with the training process.

    Attributes:
        control_fd: descriptor of the control block.
        data_fd: descriptor of the slots.
        buffers: openers of the device buffers, by number.
        memory_fd: descriptor of the ledger of lent memory; -1 if training lends none.
    """

    control_fd: int
    data_fd: int
    buffers: Sequence[SharedBuffer] = ()
    memory_fd: int = -1


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """Options of the GPU worker's control.

    Attributes:
        start: starts the worker.
        most_samples: samples in a launch, at most.
        sharing: the value of a ``Mode``, or ``"auto"``.
        mark_stream: records an event behind training's work on the device; returns a function
            that says whether the device has passed the event.
        buffers: number of batch buffers on the device.
        memory: options for lending memory; ``None`` to lend none.
        decoder: name of the decoder, and which nvJPEG it uses, for ``stats()``.
        in_thread: whether the worker is a thread of this process.
        allocator: training's allocator on the worker's device; ``None`` for the CPU backend.
    """

    start: StartGpuWorker
    most_samples: int
    sharing: str
    mark_stream: Callable[[], Callable[[], bool]]
    buffers: int
    memory: MemoryOptions | None = None
    decoder: str = "DALI"
    in_thread: bool = False
    allocator: TorchAllocator | None = None
