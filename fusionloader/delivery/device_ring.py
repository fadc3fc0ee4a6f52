"""Device memory for batches, reused when no tensor references it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusionloader._native import cuda as native
from fusionloader.delivery.cuda_device import Device
from fusionloader.delivery.device_memory import DeviceMemory, open_memory

_NO_NUMBER = -1


BufferOpener = tuple[Callable[..., torch.Tensor], tuple[Any, ...]]
"""A function, and the arguments with which it opens a buffer in the GPU worker."""


def _itself(memory: torch.Tensor) -> torch.Tensor:
    return memory


class DeviceBuffer:
    """``nbytes`` of device memory; ``number`` identifies it in the GPU worker if it is shared."""

    def __init__(self, number: int, memory: DeviceMemory, tensor: torch.Tensor) -> None:
        self.number = number
        self.address, self.nbytes = memory.address, memory.nbytes
        self.memory = tensor
        self._storage = self.memory.untyped_storage()
        self._alone = self._references()
        self.marks: list[native.Event] = []

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

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: list[DeviceBuffer] = []
        self._delivered: list[DeviceBuffer] = []
        self._ending: list[DeviceBuffer] = []
        self._shared: list[BufferOpener] = []
        self.allocated_bytes = 0

    def share(self, count: int, nbytes: int, in_process: bool = False) -> list[BufferOpener]:
        """Allocates buffers for a GPU worker, once; returns what it opens them with, by number.

        With ``in_process`` it is a thread of this process, and gets the buffers themselves.
        """
        if not self._shared:
            for number in range(count):
                buffer, memory = self._allocate(number, nbytes)
                opener: BufferOpener = (_itself, (buffer.memory,))
                self._shared.append(opener if in_process else (open_memory, memory.handle()))
        return self._shared

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
        if found is None:
            # What is too small now would stay beside the larger ones.
            self._free = [each for each in self._free if each.number != _NO_NUMBER]
            self._allocate(_NO_NUMBER, nbytes)
            found = self._free.pop()
        return found

    def _take(self, nbytes: int, shared: bool) -> DeviceBuffer | None:
        for buffer in self._free:
            if (buffer.number != _NO_NUMBER) == shared and buffer.nbytes >= nbytes:
                self._free.remove(buffer)
                return buffer
        return None

    def put_back(self, buffer: DeviceBuffer) -> None:
        """Takes back a buffer that nothing was done with."""
        self._free.append(buffer)

    def release(self, buffer: DeviceBuffer, behind: native.Event) -> None:
        """Takes back a buffer that was not delivered, and is copied into until ``behind``."""
        buffer.marks.append(behind)
        self._delivered.append(buffer)

    def deliver(self, buffer: DeviceBuffer) -> None:
        """Hands a buffer over to the caller, whose tensors have to exist already."""
        self._delivered.append(buffer)

    def _allocate(self, number: int, nbytes: int) -> tuple[DeviceBuffer, DeviceMemory]:
        memory = self._device.allocate(nbytes)
        self.allocated_bytes += nbytes
        buffer = DeviceBuffer(number, memory, self._device.tensor(memory))
        self._free.append(buffer)
        return buffer, memory

    def _collect(self) -> None:
        dropped = [buffer for buffer in self._delivered if buffer.unreferenced]
        if dropped:
            mark = native.Event(self._device.number, self._device.current_stream())
            for buffer in dropped:
                self._delivered.remove(buffer)
                buffer.marks.append(mark)
                self._ending.append(buffer)
        for buffer in [each for each in self._ending if all(m.query() for m in each.marks)]:
            self._ending.remove(buffer)
            buffer.marks.clear()
            self._free.append(buffer)
