"""What the control of a GPU worker is given: how to start it, and what the worker is given then."""

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
"""Starts worker number ``n``, which sends messages to a descriptor and puts at most so many samples
in a launch."""


@dataclass(frozen=True, slots=True)
class Connections:
    """What the worker shares with the training process.

    Descriptors of control block and slots, and what opens the device buffers, by number.
    ``memory_fd`` is that of the ledger by which training lends memory, -1 where it lends none.
    """

    control_fd: int
    data_fd: int
    buffers: Sequence[SharedBuffer] = ()
    memory_fd: int = -1


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """What the manager needs to know.

    Attributes:
        start: starts the worker.
        most_samples: in a launch.
        sharing: a ``Mode``'s value, or ``"auto"``.
        asked: records an event behind what training has enqueued, when it asks for a batch;
            returns a function that tells whether the event has passed.
        buffers: how many for batches on the device.
        memory: what training may lend it; ``None``: nothing.
        decoder: its name, and which nvJPEG decodes for it, for ``stats()``.
        in_thread: whether it is a thread of this process.
        allocator: of training, on the worker's device; ``None`` on the CPU backend.
    """

    start: StartGpuWorker
    most_samples: int
    sharing: str
    asked: Callable[[], Callable[[], bool]]
    buffers: int
    memory: MemoryOptions | None = None
    decoder: str = "DALI"
    in_thread: bool = False
    allocator: TorchAllocator | None = None
