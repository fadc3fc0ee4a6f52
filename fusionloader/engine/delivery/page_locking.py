"""Page-locked memory of batches, from which copies to a CUDA device overlap with its work."""

from __future__ import annotations

import logging

from fusionloader._native import cuda as native
from fusionloader.engine.delivery.cuda_device import Device
from fusionloader.engine.delivery.refusals import warn_of
from fusionloader.system.gpu_memory.errors import MemorySharingError
from fusionloader.system.shm.slots import Mark

log = logging.getLogger("fusionloader.manager")


class CudaPageLocking:
    """Registers memory that the CUDA driver has not allocated, with one device."""

    def __init__(self, device: Device, needed: bool = True) -> None:
        """Where it is not ``needed``, what the driver refuses is not locked, with a warning."""
        self._device, self._needed = device, needed
        self._not_locked: set[int] = set()

    def lock(self, address: int, nbytes: int) -> None:
        """Page-locks memory.

        Raises:
            MemorySharingError: the driver cannot, and it is needed.
        """
        try:
            native.page_lock(self._device.number, address, nbytes)
        except MemorySharingError as error:
            if self._needed:
                raise
            if not self._not_locked:
                warn_of(error, "tensors are in pageable memory, whose copies wait", "device")
            self._not_locked.add(address)

    def unlock(self, address: int) -> None:
        """Undoes ``lock``; has to be called before the memory is unmapped."""
        if address in self._not_locked:
            return
        try:
            native.page_unlock(self._device.number, address)
        except MemorySharingError as error:  # from a finalizer, where nobody can catch it
            log.warning("%s", error)

    def mark(self) -> Mark:
        """Returns the point behind all that was enqueued on the current stream."""
        return native.Event(self._device.number, self._device.current_stream())
