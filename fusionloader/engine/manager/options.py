"""What a local manager needs to know of its loader, and a worker of its manager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fusionloader.engine.delivery.device_batches import DeviceDelivery
from fusionloader.engine.delivery.level_rows import LevelRows
from fusionloader.engine.manager.participant import Participant
from fusionloader.engine.manager.worker_passes import WorkerPasses
from fusionloader.options.aliases import Index
from fusionloader.options.loader_options import Switch
from fusionloader.system.processes import Process
from fusionloader.system.shm.slots import PageLocking
from fusionloader.transforms.executors.batch_transport import BatchReceiver

WorkerKind = Literal["native", "python"]
"""Whether CPU workers run a plan natively, or user code."""


@dataclass(frozen=True, slots=True)
class WorkerConnection:
    """What a worker shares with its local manager.

    Attributes:
        number: its own, in the queue.
        workers: how many there are.
        control_fd: descriptor of the control block.
        data_fd: descriptor of the slots.
        message_fd: descriptor of the pipe for its messages.
        event_fd: descriptor of the event that wakes the global manager, -1 without one.
        cpus: those that it runs on, empty where the kernel chooses.
    """

    number: int
    workers: int
    control_fd: int
    data_fd: int
    message_fd: int
    event_fd: int
    cpus: tuple[int, ...]


StartWorker = Callable[[WorkerConnection], Process]
"""Starts a worker process."""


@dataclass(frozen=True, slots=True)
class ManagerOptions:
    """Plain values, and functions that the loader answers by.

    Attributes:
        workers: CPU workers of the loader.
        in_flight: mini-batches that are published at a time.
        tiny_batch_size: in samples.
        timeout: seconds after which a wait for a batch is an error, 0: none.
        name: returns a sample's name for messages from its index.
        page_locking: of slots, where batches are copied to a device.
        group_size: neighbours in a batch that share the draws of augmentations, 0: none do.
        delivery: what copies batches to a device.
        levels: where rows are levels that the device converts.
        max_shared_bytes: that mini-batches in flight take, but for two of them; by default a
            quarter of what is free.
        batch_size: rows for which buffers on the device are laid out.
        most_workers: CPU workers that there may be later, if that is more than ``workers``.
        cpu_affinity: ``"auto"`` or ``"off"``.
        worker_kind: what CPU workers run.
        stall_timeout: seconds without progress after which a worker is replaced, 0: none.
        receiver: gets the mini-batches that workers make whole, a tiny-batch each.
        passes: of workers that go through the dataset on their own.
        participants: what takes part beside the loader's workers.
    """

    workers: int
    in_flight: int
    tiny_batch_size: int
    timeout: float
    name: Callable[[Index], str]
    page_locking: PageLocking | None = None
    group_size: int = 0
    delivery: DeviceDelivery | None = None
    levels: LevelRows | None = None
    max_shared_bytes: int | None = None
    batch_size: int = 0
    most_workers: int = 0
    cpu_affinity: Switch = "off"
    worker_kind: WorkerKind = "python"
    stall_timeout: float = 0
    receiver: BatchReceiver | None = None
    passes: WorkerPasses | None = None
    participants: Sequence[Participant] = ()
