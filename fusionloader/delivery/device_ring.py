"""Device memory for batches, reused when no tensor references it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fusionloader.delivery.device_copies import Copies

if TYPE_CHECKING:
    from fusionloader.shm.slots import Mark

_NO_NUMBER = -1


BufferOpener = tuple[Callable[..., torch.Tensor], tuple[Any, ...]]
"""A function, and the arguments with which it opens a buffer in another process."""


def _itself(memory: torch.Tensor) -> torch.Tensor:
    return memory


class DeviceBuffer:
    """``nbytes`` of device memory; ``number`` identifies it in the GPU worker if it is shared."""

    def __init__(self, number: int, memory: torch.Tensor) -> None:
        self.number = number
        self.nbytes = memory.nbytes
        self.memory = memory
        self._storage = self.memory.untyped_storage()
        self._alone = self._references()
        self.mark: Mark | None = None

    @property
    def unreferenced(self) -> bool:
        """Whether ``memory`` is the only tensor on its storage."""
        return self._references() == self._alone

    def _references(self) -> int:
        return int(torch._C._storage_Use_Count(self._storage._cdata))


class DeviceRing:
    """Buffers in three states: free, in use here, delivered.

    A delivered buffer is free again when the last tensor over it was collected *and* the device has
    done what was enqueued before that was noticed. (Work on a stream that is not current when the
    next batch is requested must keep a reference to its batch, as for any tensor.)
    """

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._free: list[DeviceBuffer] = []
        self._delivered: list[DeviceBuffer] = []
        self._ending: list[DeviceBuffer] = []
        self.allocated_bytes = 0

    def share(self, count: int, nbytes: int, in_process: bool = False) -> list[BufferOpener]:
        """Allocates buffers for the GPU worker; returns what it opens them with, by number.

        Each is a function and its arguments, as ``torch.multiprocessing`` reduces a CUDA tensor:
        an IPC handle; with ``in_process`` the tensor itself. To be called once.
        """
        from torch.multiprocessing.reductions import reduce_tensor

        shared = [self._allocate(number, nbytes) for number in range(count)]
        self._free += shared
        if in_process:
            return [(_itself, (buffer.memory,)) for buffer in shared]
        return [reduce_tensor(buffer.memory) for buffer in shared]  # type: ignore[no-untyped-call]

    def acquire_shared(self, nbytes: int) -> DeviceBuffer | None:
        """Returns a free buffer of at least ``nbytes`` that the GPU worker can write into."""
        self._collect()
        return self._take(nbytes, shared=True)

    def acquire(self, nbytes: int) -> DeviceBuffer:
        """Returns a buffer of at least ``nbytes`` that is not shared.

        Raises:
            torch.OutOfMemoryError: the device has no room for another one.
        """
        self._collect()
        found = self._take(nbytes, shared=False)
        return self._allocate(_NO_NUMBER, nbytes) if found is None else found

    def _take(self, nbytes: int, shared: bool) -> DeviceBuffer | None:
        for buffer in self._free:
            if (buffer.number != _NO_NUMBER) == shared and buffer.nbytes >= nbytes:
                self._free.remove(buffer)
                return buffer
        return None

    def release(self, buffer: DeviceBuffer) -> None:
        """Takes back a buffer that was not delivered; copies into it may not have ended."""
        self._delivered.append(buffer)

    def deliver(self, buffer: DeviceBuffer) -> None:
        """Hands a buffer over to the caller, whose tensors have to exist already."""
        self._delivered.append(buffer)

    def _allocate(self, number: int, nbytes: int) -> DeviceBuffer:
        self.allocated_bytes += nbytes
        return DeviceBuffer(number, self._copies.allocate(nbytes))

    def _collect(self) -> None:
        dropped = [buffer for buffer in self._delivered if buffer.unreferenced]
        if dropped:
            mark = self._copies.mark_consumer()
            for buffer in dropped:
                self._delivered.remove(buffer)
                buffer.mark = mark
                self._ending.append(buffer)
        for buffer in [buffer for buffer in self._ending if buffer.mark and buffer.mark.query()]:
            self._ending.remove(buffer)
            buffer.mark = None
            self._free.append(buffer)
