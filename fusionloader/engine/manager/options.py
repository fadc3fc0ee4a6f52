"""What a local manager needs to know of its loader, and a worker of its manager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fusionloader.engine.delivery.device_batches import DeviceDelivery
from fusionloader.engine.delivery.level_rows import LevelRows
from fusionloader.engine.manager.worker_passes import WorkerPasses
from fusionloader.gpu.start import GpuOptions
from fusionloader.options.aliases import Index
from fusionloader.options.loader_options import Switch
from fusionloader.sharing.pool.binding import PoolBinding
from fusionloader.sharing.pool.pool_processes import PoolProcesses
from fusionloader.sharing.ranks.sharing_offer import SharingOffer
from fusionloader.sharing.remote.link import RemoteTask
from fusionloader.system.processes import Process
from fusionloader.system.shm.slots import PageLocking
from fusionloader.transforms.executors.batch_transport import BatchReceiver

WorkerKind = Literal["native", "python"]
"""Whether CPU workers run a plan natively, or user code."""


@dataclass(frozen=True, slots=True)
class WorkerConnection:
    """What a worker shares with its local manager.

    Descriptors of the control block, of the slots, of the pipe for its messages, and of the event
    that wakes the global manager (-1 without one). ``number`` is one of ``workers``; ``cpus`` are
    those that it runs on, empty where the kernel chooses. ``pool`` where it is a pool's worker.
    """

    number: int
    workers: int
    control_fd: int
    data_fd: int
    message_fd: int
    event_fd: int
    cpus: tuple[int, ...]
    pool: PoolBinding | None


StartWorker = Callable[[WorkerConnection], Process]
"""Starts a worker process."""


@dataclass(frozen=True, slots=True)
class ManagerOptions:
    """Plain values, and functions that the loader answers by.

    ``tiny_batch_size`` in samples, ``in_flight`` in mini-batches, ``timeout`` and
    ``stall_timeout`` in seconds (0: none).
    There may be up to ``most_workers`` later, if that is more than ``workers``.
    ``name`` returns a sample's name for messages from its index. ``page_locking`` where
    batches are copied to a device. ``group_size`` neighbours in a batch share the draws of
    augmentations (0: each sample has its own). ``gpu`` where there is a GPU worker; it writes into
    buffers of ``delivery``, laid out for ``batch_size`` rows, or where it has none into the slots,
    as the others do. ``levels`` where rows are levels that the device converts. Mini-batches in
    flight take at most ``max_shared_bytes``, by default a quarter of what is free, but for two.
    ``sharing_offer`` where workers are shared with other ranks; ``pool`` where they are those of a
    pool, and ``background`` where it serves other loaders first. ``cpu_affinity`` is ``"auto"`` or
    ``"off"``. ``worker_kind`` says what workers run. ``remote`` where workers on other machines
    take part. ``receiver`` gets the mini-batches that workers make whole, a tiny-batch each.
    ``passes`` where workers go through the dataset on their own.
    """

    workers: int
    in_flight: int
    tiny_batch_size: int
    timeout: float
    name: Callable[[Index], str]
    page_locking: PageLocking | None = None
    group_size: int = 0
    gpu: GpuOptions | None = None
    delivery: DeviceDelivery | None = None
    levels: LevelRows | None = None
    max_shared_bytes: int | None = None
    batch_size: int = 0
    most_workers: int = 0
    sharing_offer: SharingOffer | None = None
    pool: PoolProcesses | None = None
    background: bool = False
    cpu_affinity: Switch = "off"
    worker_kind: WorkerKind = "python"
    stall_timeout: float = 0
    remote: RemoteTask | None = None
    receiver: BatchReceiver | None = None
    passes: WorkerPasses | None = None
