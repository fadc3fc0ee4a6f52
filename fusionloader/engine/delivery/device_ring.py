"""Device buffers that a GPU worker writes into, reused when no tensor refers to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusionloader._native import cuda as native
from fusionloader.engine.delivery.cuda_device import CudaDevice
from fusionloader.engine.delivery.device_memory import DeviceMemory, open_memory
from fusionloader.system.gpu_memory.errors import CudaError
from fusionloader.transforms.executors.device_errors import is_shortage

BufferOpener = tuple[Callable[..., torch.Tensor], tuple[Any, ...]]
"""A function and its arguments, which open a buffer in the GPU worker."""

_DEFAULT_STREAM = 0


def _itself(memory: torch.Tensor) -> torch.Tensor:
    return memory


def _allocate(device: int, nbytes: int) -> DeviceMemory:
    try:
        return DeviceMemory(device, nbytes)
    except CudaError as error:
        if not is_shortage(error):
            raise
    torch.cuda.empty_cache()  # memory of an earlier epoch; this one has not begun
    return DeviceMemory(device, nbytes)


class DeviceBuffer:
    """A buffer in device memory.

    Attributes:
        number: number of the buffer in the GPU worker.
        memory: the whole buffer, as a uint8 tensor.
        stream: stream that its last batch was delivered on; ``None`` if it was not delivered.
        marks: events that the device must pass before the buffer is free.
    """

    def __init__(self, number: int, memory: torch.Tensor) -> None:
        self.number, self.memory = number, memory
        self._storage = memory.untyped_storage()
        self._alone = self._references()
        self.stream: int | None = None
        self.marks: list[native.Event] = []

    def rows(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Returns a tensor over the beginning of the buffer.

        ``.data`` gives each batch its own version counter, so that autograd does not take a reuse
        of the buffer for a change of an earlier batch.
        """
        nbytes = torch.Size(shape).numel() * dtype.itemsize
        return self.memory[:nbytes].view(dtype).data.view(shape)

    @property
    def unreferenced(self) -> bool:
        """Whether ``memory`` is the only tensor over its storage."""
        return self._references() == self._alone

    def _references(self) -> int:
        return int(torch._C._storage_Use_Count(self._storage._cdata))


class DeviceRing:
    """Buffers in three states: free, in use here, ended.

    An ended buffer becomes free after the last tensor over it was freed *and* the device has done
    the work that was enqueued by then: in the copy stream, in the stream that the batch was
    delivered on, in the default stream and in the current one. Work in other streams must keep a
    reference to its batch, because ``record_stream`` has no effect on memory that torch's allocator
    does not own.
    """

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._free: list[DeviceBuffer] = []
        self._ended: list[DeviceBuffer] = []
        self._openers: list[BufferOpener] = []

    def share(self, count: int, nbytes: int, in_process: bool = False) -> list[BufferOpener]:
        """Allocates buffers for a GPU worker, once; returns their openers, by number.

        With ``in_process`` the worker is a thread of this process, and uses the same tensors.

        Raises:
            CudaError: the driver refuses; no buffer is kept then.
        """
        try:
            while len(self._openers) < count:
                memory = _allocate(self._device.number, nbytes)
                buffer = DeviceBuffer(len(self._openers), self._device.tensor(memory))
                opener: BufferOpener = (_itself, (buffer.memory,))
                self._openers.append(opener if in_process else (open_memory, memory.handle()))
                self._free.append(buffer)
        except BaseException:
            self._openers.clear()
            self._free.clear()
            raise
        return self._openers

    def acquire(self, nbytes: int) -> DeviceBuffer | None:
        """Returns a free buffer of at least ``nbytes``; ``None`` if there is none."""
        self._collect()
        for place, buffer in enumerate(self._free):
            if buffer.memory.nbytes >= nbytes:
                del self._free[place]  # no call: with one, an exception could come and lose it
                return buffer
        return None

    def put_back(self, buffer: DeviceBuffer) -> None:
        """Frees a buffer that no work was enqueued for."""
        self._free.append(buffer)

    def end(self, buffer: DeviceBuffer) -> None:
        """Ends the use of a buffer whose batch was delivered, or will not be.

        It may be called again, after an exception in the delivery.
        """
        if buffer not in self._ended:
            self._ended.append(buffer)

    def _collect(self) -> None:
        for buffer in self._ended:
            if not buffer.marks and buffer.unreferenced:
                here = {self._device.copy_stream, _DEFAULT_STREAM, self._device.current_stream()}
                streams = here if buffer.stream is None else {*here, buffer.stream}
                buffer.marks = [native.Event(self._device.number, each) for each in streams]
        for buffer in [each for each in self._ended if each.marks]:
            if all(mark.query() for mark in buffer.marks):
                others = [each for each in self._ended if each is not buffer]
                free = [*self._free, buffer]
                # No call follows, so no exception can come when it is in both lists, or in none.
                buffer.marks, buffer.stream = [], None
                self._free, self._ended = free, others
