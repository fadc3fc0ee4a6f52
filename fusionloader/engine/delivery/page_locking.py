"""Page-locks batch memory, so that copies to a CUDA device overlap with the device's work."""

from __future__ import annotations

import logging

from fusionloader._native import cuda as native
from fusionloader.engine.delivery.cuda_device import Device
from fusionloader.engine.delivery.refusals import warn_refused
from fusionloader.system.gpu_memory.errors import MemorySharingError
from fusionloader.system.shm.slots import Mark

log = logging.getLogger("fusionloader.manager")


class CudaPageLocking:
    """Page-locks memory of other allocators for one device."""

    def __init__(self, device: Device, needed: bool = True) -> None:
        """If not ``needed``, memory that the driver refuses stays pageable, with a warning."""
        self._device, self._needed = device, needed
        self._not_locked: set[int] = set()

    def lock(self, address: int, nbytes: int) -> None:
        """Page-locks memory.

        Raises:
            MemorySharingError: the driver refuses, and locking is needed.
        """
        try:
            native.page_lock(self._device.number, address, nbytes)
        except MemorySharingError as error:
            if self._needed:
                raise
            if not self._not_locked:
                warn_refused(error, "tensors are in pageable memory, whose copies wait", "device")
            self._not_locked.add(address)

    def unlock(self, address: int) -> None:
        """Undoes ``lock``. Call it before the memory is unmapped."""
        if address in self._not_locked:
            return
        try:
            native.page_unlock(self._device.number, address)
        except MemorySharingError as error:  # not raised: a finalizer calls this
            log.warning("%s", error)

    def mark(self) -> Mark:
        """Returns an event after all work enqueued in the current stream."""
        return native.Event(self._device.number, self._device.current_stream())
