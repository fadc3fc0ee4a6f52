"""What deliveries ask of a device: memory, tensors over it, the stream that training is on."""

from __future__ import annotations

import functools
import logging
from typing import Protocol

import torch

from fusionloader._native import cuda as native
from fusionloader.delivery.device_memory import DeviceMemory
from fusionloader.executors.device.kernel import CONVERT_LEVELS, kernel_code
from fusionloader.executors.device.nvrtc import NvrtcError
from fusionloader.gpu_memory.errors import CudaError

log = logging.getLogger("fusionloader.loader")

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class Device(Protocol):
    """A device, by its ``number`` in this process."""

    number: int

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Returns fresh memory, which nothing on the device uses.

        Raises:
            torch.OutOfMemoryError: there is no room for it.
        """

    def tensor(self, memory: DeviceMemory) -> torch.Tensor:
        """Returns the memory as a uint8 tensor, which keeps it."""

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a copy of a tensor on the device, in the order of training's stream."""

    def current_stream(self) -> int:
        """Returns the stream that training enqueues to now, in this thread."""

    def conversion_kernel(self) -> int | str:
        """Returns the kernel that makes elements of levels, or why there is none."""


class CudaDevice:
    """A CUDA device."""

    def __init__(self, device: torch.device) -> None:
        index = device.index
        self.number: int = torch.cuda.current_device() if index is None else index

    def allocate(self, nbytes: int) -> DeviceMemory:
        """See ``Device``. The memory is not of torch's allocator, which may have to let some go."""
        try:
            return DeviceMemory(self.number, nbytes)
        except CudaError as error:
            if error.code != _OUT_OF_MEMORY:
                raise
        torch.cuda.empty_cache()
        try:
            return DeviceMemory(self.number, nbytes)
        except CudaError as error:
            raise torch.OutOfMemoryError(
                f"a batch of {nbytes} bytes does not fit on cuda:{self.number}: {error}"
            ) from None

    def tensor(self, memory: DeviceMemory) -> torch.Tensor:
        """See ``Device``."""
        return memory.tensor()

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        """See ``Device``."""
        return tensor.clone()

    def current_stream(self) -> int:
        """See ``Device``."""
        return int(torch.cuda.current_stream(self.number).cuda_stream)

    def conversion_kernel(self) -> int | str:
        """See ``Device``."""
        kernel = _conversion_kernel(self.number)
        return kernel if isinstance(kernel, str) else kernel.function


@functools.cache
def _conversion_kernel(device: int) -> native.Kernel | str:
    """Compiles and loads it, once a process: loaders may begin anew with every epoch."""
    try:
        code = kernel_code(native.architecture(device), file=CONVERT_LEVELS)
        return native.Kernel(device, code, "fusionloader_convert_levels")
    except (NvrtcError, CudaError) as error:
        log.info("batches cross to the device as they are, not as levels: %s", error)
        return str(error)
