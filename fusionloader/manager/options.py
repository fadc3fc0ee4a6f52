"""What a local manager needs to know of its loader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fusionloader.delivery.device_ring import DeviceRing
from fusionloader.gpu.control import GpuOptions
from fusionloader.pool.pool_processes import PoolProcesses
from fusionloader.ranks.sharing_offer import SharingOffer
from fusionloader.shm.slots import PageLocking


@dataclass(frozen=True, slots=True)
class ManagerOptions:
    """Plain values, and functions that the loader answers by.

    ``tiny_batch_size`` in samples, ``in_flight`` in mini-batches, ``timeout`` in seconds (0: none).
    There may be up to ``most_workers`` later, if that is more than ``workers``.
    ``name`` returns a sample's name for messages from its index. ``page_locking`` where
    batches are copied to a device. ``group_size`` neighbours in a batch share the draws of
    augmentations (0: each sample has its own). ``gpu`` where there is a GPU worker; it writes into
    buffers of ``ring``, laid out for ``batch_size`` rows, or where there is none into the slots, as
    the others do. ``sharing_offer`` where workers come from other ranks and go there;
    ``pool`` where they are those of a pool. ``cpu_affinity`` is ``"auto"`` or ``"off"``.
    """

    workers: int
    in_flight: int
    tiny_batch_size: int
    timeout: float
    name: Callable[[Any], str]
    page_locking: PageLocking | None = None
    group_size: int = 0
    gpu: GpuOptions | None = None
    ring: DeviceRing | None = None
    batch_size: int = 0
    most_workers: int = 0
    sharing_offer: SharingOffer | None = None
    pool: PoolProcesses | None = None
    cpu_affinity: str = "off"
