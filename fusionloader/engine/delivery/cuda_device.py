"""What deliveries ask of a device: memory, and the streams of copies and of training."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

import torch

from fusionloader._native import cuda as native
from fusionloader.engine.delivery.device_memory import DeviceMemory
from fusionloader.engine.delivery.refusals import warn_of
from fusionloader.system.gpu_memory.errors import MemorySharingError
from fusionloader.transforms.executors.device.kernel import CONVERT_LEVELS, kernel_code
from fusionloader.transforms.executors.device.nvrtc import NvrtcError, why_missing


class Device(Protocol):
    """A device, by its ``number`` in this process; batches are copied in its ``copy_stream``."""

    number: int

    @property
    def copy_stream(self) -> int:
        """The stream of all copies of this process, which is made with the first use of it."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Returns a tensor whose memory is free in the order of the copy stream.

        Raises:
            torch.OutOfMemoryError: there is no room for it.
        """

    def upload(self, data: bytes) -> torch.Tensor:
        """Returns bytes on the device, which are there for work in the copy stream."""

    def record_stream(self, tensor: torch.Tensor) -> None:
        """Has the memory of a tensor of ``empty`` wait for the current stream when it is freed."""

    def tensor(self, memory: DeviceMemory) -> torch.Tensor:
        """Returns the memory as a uint8 tensor, which keeps it."""

    def current_stream(self) -> int:
        """Returns the stream that training enqueues to now, in this thread."""

    def conversion_kernel(self) -> int | str:
        """Returns the kernel that makes elements of levels, or why there is none."""

    def synchronize(self) -> None:
        """Has torch wait until the device has done everything."""


class CudaDevice:
    """A CUDA device, with memory of torch's allocator.

    That caches memory by the stream it was allocated under, here the copy stream, and gives it out
    again in that stream's order. Where another stream uses it, the one of ``next()`` or one of the
    user's ``record_stream``, it is not given out before that stream has passed the point where the
    last tensor over it was freed.
    """

    def __init__(self, device: torch.device) -> None:
        index = device.index
        self.number: int = torch.cuda.current_device() if index is None else index

    @property
    def copy_stream(self) -> int:
        """See ``Device``."""
        return int(_copy_stream(self.number).cuda_stream)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """See ``Device``."""
        # A batch may be delivered outside of the inference mode that it was begun in.
        with torch.inference_mode(False), torch.cuda.stream(_copy_stream(self.number)):
            return torch.empty(shape, dtype=dtype, device=f"cuda:{self.number}")

    def upload(self, data: bytes) -> torch.Tensor:
        """See ``Device``."""
        host = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        with torch.cuda.stream(_copy_stream(self.number)):
            return host.to(f"cuda:{self.number}")

    def record_stream(self, tensor: torch.Tensor) -> None:
        """See ``Device``."""
        tensor.record_stream(torch.cuda.current_stream(self.number))

    def tensor(self, memory: DeviceMemory) -> torch.Tensor:
        """See ``Device``."""
        return memory.tensor()

    def current_stream(self) -> int:
        """See ``Device``."""
        return int(torch.cuda.current_stream(self.number).cuda_stream)

    def conversion_kernel(self) -> int | str:
        """See ``Device``."""
        kernel = load_conversion(self.number, _code)
        return kernel if isinstance(kernel, str) else kernel.function

    def synchronize(self) -> None:
        """See ``Device``."""
        torch.cuda.synchronize(self.number)


@functools.cache
def _copy_stream(device: int) -> torch.cuda.Stream:
    """Makes it once a process: what the allocator caches for a stream is of no use to another."""
    stream = native.make_stream(device)
    return torch.cuda.ExternalStream(stream, device)  # type: ignore[no-untyped-call]


def _code(device: int) -> bytes:
    return kernel_code(native.architecture(device), file=CONVERT_LEVELS)


@functools.cache
def load_conversion(device: int, code: Callable[[int], bytes]) -> native.Kernel | str:
    """Returns the kernel that is in ``code(device)``, or why there is none.

    It is loaded once a process: loaders may begin anew with every epoch.
    """
    try:
        return native.Kernel(device, code(device), "fusionloader_convert_levels")
    except (NvrtcError, MemorySharingError) as error:
        if why_missing() is None:  # else explain() says so
            warn_of(error, "batches cross to the device as they are, not as 8-bit levels", "device")
        return str(error)
