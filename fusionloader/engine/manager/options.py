"""Options of a local manager, and the connection of a worker to its manager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fusionloader.engine.delivery.device_batches import DeviceDelivery
from fusionloader.engine.delivery.program_rows import RowConversion
from fusionloader.engine.manager.participant import Participant
from fusionloader.engine.manager.worker_passes import WorkerPasses
from fusionloader.options.aliases import Index
from fusionloader.options.loader_options import Switch
from fusionloader.system.processes import Process
from fusionloader.system.shm.slots import PageLocking
from fusionloader.transforms.executors.batch_transport import BatchReceiver

WorkerKind = Literal["native", "python"]
"""What CPU workers run: a plan natively, or user code."""


@dataclass(frozen=True, slots=True)
class WorkerConnection:
    """What a worker shares with its local manager.

    Attributes:
        number: number of the worker in the queue.
        workers: number of CPU workers.
        control_fd: descriptor of the control block.
        data_fd: descriptor of the slots.
        message_fd: descriptor of the pipe for the worker's messages.
        event_fd: descriptor of the event that wakes the global manager, -1 without one.
        cpus: CPUs that the worker may run on, empty for all.
        is_staged: whether batches that it makes whole lie in the slots of their mini-batches.
    """

    number: int
    workers: int
    control_fd: int
    data_fd: int
    message_fd: int
    event_fd: int
    cpus: tuple[int, ...]
    is_staged: bool = False


StartWorker = Callable[[WorkerConnection], Process]
"""Starts a worker process."""


@dataclass(frozen=True, slots=True)
class ManagerOptions:
    """Options of a local manager.

    Attributes:
        workers: number of CPU workers.
        in_flight: number of mini-batches that are published at a time.
        tiny_batch_size: samples in a tiny-batch.
        timeout: seconds after which a wait for a batch is an error, 0 for no limit.
        name: returns a sample's name for messages from its index.
        page_locking: page-locks slots, where batches are copied to a device.
        group_size: number of neighbours in a batch that share random draws, 0 for none.
        delivery: copies batches to a device.
        conversion: what the device does to the first leaf of each row.
        max_shared_bytes: most bytes of the mini-batches in flight, though two are always allowed;
            by default a quarter of the free memory.
        batch_size: rows of a device buffer.
        most_workers: highest later number of CPU workers, if that is more than ``workers``.
        cpu_affinity: ``"auto"`` or ``"off"``.
        worker_kind: what CPU workers run.
        stall_timeout: seconds without progress after which a worker is replaced, 0 for never.
        receiver: receives mini-batches that workers make whole, as one tiny-batch each.
        passes: passes of workers that iterate over the dataset themselves.
        participants: participants beside the loader's workers.
    """

    workers: int
    in_flight: int
    tiny_batch_size: int
    timeout: float
    name: Callable[[Index], str]
    page_locking: PageLocking | None = None
    group_size: int = 0
    delivery: DeviceDelivery | None = None
    conversion: RowConversion | None = None
    max_shared_bytes: int | None = None
    batch_size: int = 0
    most_workers: int = 0
    cpu_affinity: Switch = "off"
    worker_kind: WorkerKind = "python"
    stall_timeout: float = 0
    receiver: BatchReceiver | None = None
    passes: WorkerPasses | None = None
    participants: Sequence[Participant] = ()
