"""Device memory that a GPU worker writes into, reused when no tensor references it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusionloader._native import cuda as native
from fusionloader.engine.delivery.cuda_device import Device
from fusionloader.engine.delivery.device_memory import DeviceMemory, open_memory
from fusionloader.system.gpu_memory.errors import CudaError
from fusionloader.transforms.executors.device_errors import is_shortage

BufferOpener = tuple[Callable[..., torch.Tensor], tuple[Any, ...]]
"""A function, and the arguments with which it opens a buffer in the GPU worker."""

_DEFAULT_STREAM = 0


def _itself(memory: torch.Tensor) -> torch.Tensor:
    return memory


def _allocate(device: int, nbytes: int) -> DeviceMemory:
    try:
        return DeviceMemory(device, nbytes)
    except CudaError as error:
        if not is_shortage(error):
            raise
    torch.cuda.empty_cache()  # of an earlier epoch; this one has not begun
    return DeviceMemory(device, nbytes)


class DeviceBuffer:
    """Device memory, ``number`` of which identifies it in the GPU worker.

    Attributes:
        memory: all of it, as a uint8 tensor.
        stream: the one that its last batch was delivered on, if it was delivered.
        marks: what the device has to pass before it is free.
    """

    def __init__(self, number: int, memory: torch.Tensor) -> None:
        self.number, self.memory = number, memory
        self._storage = memory.untyped_storage()
        self._alone = self._references()
        self.stream: int | None = None
        self.marks: list[native.Event] = []

    def rows(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Returns a tensor over its beginning, which has a version of its own for autograd."""
        nbytes = torch.Size(shape).numel() * dtype.itemsize
        return self.memory[:nbytes].view(dtype).data.view(shape)

    @property
    def unreferenced(self) -> bool:
        """Whether ``memory`` is the only tensor on its storage."""
        return self._references() == self._alone

    def _references(self) -> int:
        return int(torch._C._storage_Use_Count(self._storage._cdata))


class DeviceRing:
    """Buffers in three states: free, in use here, ended.

    One that has ended is free again when the last tensor over it was collected *and* the device has
    done what was enqueued before that was noticed: in the copy stream, in the one that the batch
    was delivered on, in the default one and in the one that is current then. Work on other streams
    must keep a reference to its batch: ``record_stream`` does nothing for memory that is not of
    torch's allocator.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: list[DeviceBuffer] = []
        self._ended: list[DeviceBuffer] = []
        self._openers: list[BufferOpener] = []

    def share(self, count: int, nbytes: int, in_process: bool = False) -> list[BufferOpener]:
        """Allocates buffers for a GPU worker, once; returns what it opens them with, by number.

        With ``in_process`` it is a thread of this process, and gets the buffers themselves.
        """
        while len(self._openers) < count:
            memory = _allocate(self._device.number, nbytes)
            buffer = DeviceBuffer(len(self._openers), self._device.tensor(memory))
            opener: BufferOpener = (_itself, (buffer.memory,))
            self._openers.append(opener if in_process else (open_memory, memory.handle()))
            self._free.append(buffer)
        return self._openers

    def acquire(self, nbytes: int) -> DeviceBuffer | None:
        """Returns a free buffer of at least ``nbytes``, if there is one."""
        self._collect()
        for buffer in self._free:
            if buffer.memory.nbytes >= nbytes:
                self._free.remove(buffer)
                return buffer
        return None

    def put_back(self, buffer: DeviceBuffer) -> None:
        """Takes back a buffer that nothing was done with."""
        self._free.append(buffer)

    def end(self, buffer: DeviceBuffer) -> None:
        """Takes back a buffer whose batch is the caller's, or is not delivered."""
        self._ended.append(buffer)

    def _collect(self) -> None:
        for buffer in self._ended:
            if not buffer.marks and buffer.unreferenced:
                here = {self._device.copy_stream, _DEFAULT_STREAM, self._device.current_stream()}
                streams = here if buffer.stream is None else {*here, buffer.stream}
                buffer.marks = [native.Event(self._device.number, each) for each in streams]
        for buffer in [each for each in self._ended if each.marks]:
            if all(mark.query() for mark in buffer.marks):
                self._ended.remove(buffer)
                buffer.marks, buffer.stream = [], None
                self._free.append(buffer)
