"""A CUDA device as deliveries use it: memory, the copy stream, and training's stream."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from fusionloader._native import cuda as native
from fusionloader.engine.delivery.device_memory import DeviceMemory
from fusionloader.engine.delivery.refusals import warn_refused
from fusionloader.system.gpu_memory.errors import MemorySharingError
from fusionloader.transforms.executors.device.kernel import (
    AUGMENT_ROWS,
    CONVERT_LEVELS,
    ENTRIES,
    kernel_code,
)
from fusionloader.transforms.executors.device.nvrtc import NvrtcError, why_missing
from fusionloader.transforms.executors.device_errors import is_shortage


class CudaDevice:
    """A CUDA device that batches are copied to, with memory of torch's allocator.

    The allocator caches memory by the stream that it was allocated in, here the copy stream, and
    reuses it in that stream's order. If another stream uses the memory (that of ``next()``, or one
    that the user passed to ``record_stream``), it is reused only after that stream has passed the
    point where the last tensor over it was freed.

    Attributes:
        number: number of the device in this process.
    """

    def __init__(self, device: torch.device) -> None:
        index = device.index
        self.number: int = torch.cuda.current_device() if index is None else index

    @property
    def copy_stream(self) -> int:
        """The stream of all copies in this process. The first use creates it."""
        return int(_copy_stream(self.number).cuda_stream)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Returns a tensor that work in the copy stream may overwrite.

        Raises:
            torch.OutOfMemoryError: the device has too little memory.
        """
        # Not an inference tensor: the batch may be delivered outside of the current inference mode.
        with torch.inference_mode(False), torch.cuda.stream(_copy_stream(self.number)):
            return torch.empty(shape, dtype=dtype, device=f"cuda:{self.number}")

    def upload(self, data: bytes) -> torch.Tensor:
        """Returns a uint8 tensor with ``data``, for later work in the copy stream."""
        host = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        with torch.cuda.stream(_copy_stream(self.number)):
            return host.to(f"cuda:{self.number}")

    def record_stream(self, tensor: torch.Tensor) -> None:
        """Delays the reuse of a tensor from ``empty`` until the current stream has used it."""
        tensor.record_stream(torch.cuda.current_stream(self.number))

    def tensor(self, memory: DeviceMemory) -> torch.Tensor:
        """Returns a uint8 tensor over the memory, which keeps the memory alive."""
        return memory.tensor()

    def current_stream(self) -> int:
        return int(torch.cuda.current_stream(self.number).cuda_stream)

    def current_streams(self) -> list[tuple[int, int]]:
        """Returns the numbers of all devices in use, each with its current stream."""
        # An event on another device would make a context there.
        return [
            (number, int(torch.cuda.current_stream(number).cuda_stream))
            for number in range(torch.cuda.device_count())
            if torch._C._cuda_hasPrimaryContext(number)  # type: ignore[attr-defined]
        ]

    def conversion_kernel(self, file: str = CONVERT_LEVELS) -> int | str:
        """Returns the kernel of a source file, one of ``ENTRIES``, or why there is none."""
        kernel = load_conversion(self.number, _code, file)
        return kernel if isinstance(kernel, str) else kernel.function

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.number)


_copy_streams: dict[int, torch.cuda.Stream] = {}
_making = threading.RLock()  # a signal handler may copy, too


def _copy_stream(device: int) -> torch.cuda.Stream:
    """Returns the stream, one per process: memory cached for one stream is useless to another."""
    if device not in _copy_streams:
        with _making:  # two threads may copy for the first time at once
            if device not in _copy_streams:
                stream = torch.cuda.ExternalStream(native.make_stream(device), device)  # type: ignore[no-untyped-call]
                _copy_streams[device] = stream
    return _copy_streams[device]


def _code(device: int, file: str) -> bytes:
    return kernel_code(native.architecture(device), file=file)


_INSTEAD = {
    CONVERT_LEVELS: "batches cross to the device as they are, not as 8-bit levels",
    AUGMENT_ROWS: "CPU workers augment",
}


_conversions: dict[tuple[int, Callable[[int, str], bytes], str], native.Kernel | str] = {}


def load_conversion(
    device: int, code: Callable[[int, str], bytes], file: str
) -> native.Kernel | str:
    """Returns the kernel in ``code(device, file)``, or why there is none.

    It is cached for the process, because a new loader may be made for every epoch. If memory is
    short, the next loader tries again.
    """
    known = _conversions.get((device, code, file))
    if known is not None:
        return known
    try:
        made: native.Kernel | str = native.Kernel(device, code(device, file), ENTRIES[file])
    except (NvrtcError, MemorySharingError) as error:
        if why_missing() is None:  # otherwise explain() says it
            warn_refused(error, _INSTEAD[file], "device")
        made = str(error)
        if is_shortage(error):
            return made
    _conversions[device, code, file] = made
    return made
