"""Page-locks batch memory, so that copies to a CUDA device overlap with the device's work."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from fusionloader._native import cuda as native
from fusionloader.engine.delivery.cuda_device import CudaDevice
from fusionloader.engine.delivery.refusals import warn_refused
from fusionloader.system.gpu_memory.errors import MemorySharingError
from fusionloader.system.shm.slots import Mark

log = logging.getLogger("fusionloader.manager")


@dataclass(frozen=True, slots=True)
class _Events:
    events: list[native.Event]

    def query(self) -> bool:
        return all(event.query() for event in self.events)


class CudaPageLocking:
    """Page-locks memory of other allocators for one device."""

    def __init__(self, device: CudaDevice, needed: bool = True, is_delivered: bool = False) -> None:
        """If not ``needed``, memory that the driver refuses stays pageable, with a warning.

        With ``is_delivered`` the copy stream alone reads the memory.
        """
        self._device, self._needed, self._is_delivered = device, needed, is_delivered
        self._not_locked: set[int] = set()

    def lock(self, address: int, nbytes: int) -> None:
        """Page-locks memory.

        Raises:
            MemorySharingError: the driver refuses, and locking is needed.
        """
        try:
            native.page_lock(self._device.number, address, nbytes)
        except MemorySharingError as error:
            is_first = not self._not_locked
            self._not_locked.add(address)
            if self._needed:
                raise
            if is_first:
                warn_refused(error, "tensors are in pageable memory, whose copies wait", "device")
        else:
            self._not_locked.discard(address)

    def unlock(self, address: int) -> None:
        """Undoes ``lock``, if it has locked. Call it before the memory is unmapped."""
        if address in self._not_locked:
            self._not_locked.discard(address)
            return
        try:
            native.page_unlock(self._device.number, address)
        except MemorySharingError as error:  # not raised: a finalizer calls this
            log.warning("%s", error)

    def mark(self) -> Mark:
        """Returns an event after all copies enqueued so far in the streams that may read memory."""
        device = self._device
        if self._is_delivered:
            return native.Event(device.number, device.copy_stream)
        return _Events([native.Event(*each) for each in device.current_streams()])
