"""Page-locked memory of batches, from which copies to a CUDA device overlap with its work."""

from __future__ import annotations

import logging

import torch

from fusionloader.delivery.device_copies import event_behind
from fusionloader.shm.slots import Mark

log = logging.getLogger("fusionloader.manager")


class CudaPageLocking:
    """Registers memory that the CUDA driver has not allocated."""

    def lock(self, address: int, nbytes: int) -> None:
        """Page-locks memory.

        Raises:
            RuntimeError: the driver cannot.
        """
        code = int(torch.cuda.cudart().cudaHostRegister(address, nbytes, 0))  # type: ignore[no-untyped-call]
        if code != 0:
            raise RuntimeError(f"cudaHostRegister of {nbytes} bytes failed with CUDA error {code}")

    def unlock(self, address: int) -> None:
        """Undoes ``lock``; has to be called before the memory is unmapped."""
        code = int(torch.cuda.cudart().cudaHostUnregister(address))  # type: ignore[no-untyped-call]
        if code != 0:  # called by a finalizer, where no exception can be caught
            log.warning("cudaHostUnregister failed with CUDA error %d", code)

    def mark(self) -> Mark:
        """Returns the point behind all that was enqueued on the current stream."""
        return event_behind(torch.cuda.current_stream())
