"""What runs programs of the fused kernel: a CUDA device, or the host with the same source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fusionloader import _native
from fusionloader._native import cuda
from fusionloader.system.gpu_memory.errors import CudaError
from fusionloader.transforms.executors.device.kernel import kernel_code
from fusionloader.transforms.executors.device.memory import Memory, allocate_on_host
from fusionloader.transforms.executors.device_errors import is_shortage

__all__ = ["CudaLauncher", "HostLauncher", "KernelError", "Launcher"]


class KernelError(RuntimeError):
    """The driver does not take the kernel; the message says why, and what to do."""


class Launcher(Protocol):
    """Runs batches of programs. One per thread."""

    def allocate(self, nbytes: int) -> Memory:
        """Returns memory as images, rows and working memory are in."""

    def launch(self, batch: _native.DeviceBatch) -> None:
        """Runs a batch of at least one sample, at the latest when ``wait`` returns.

        Raises:
            RuntimeError: what the driver or the allocator said.
        """

    def wait(self) -> None:
        """Waits until all rows are written, and frees working memory."""


class HostLauncher:
    """Runs programs on this thread."""

    def allocate(self, nbytes: int) -> Memory:
        """See ``Launcher``."""
        return allocate_on_host(nbytes)

    def launch(self, batch: _native.DeviceBatch) -> None:
        """See ``Launcher``."""
        block, work = allocate_on_host(batch.nbytes), allocate_on_host(batch.work_bytes)
        batch.write(block.address)
        _native.run_block_on_host(block.address, work.address, batch.samples)

    def wait(self) -> None:
        """See ``Launcher``."""


class CudaLauncher:
    """Launches on one CUDA device, in the order of one stream."""

    def __init__(self, device: int, stream: int, allocate: Callable[[int], Memory]) -> None:
        """Compiles the kernel, if it was not yet.

        Args:
            device: CUDA's index.
            stream: a ``cudaStream_t`` of the device as a number, which outlives this.
            allocate: returns so many bytes of the device's memory.

        Raises:
            NvrtcError: the kernel cannot be compiled.
            KernelError: the driver does not take it.
            RuntimeError: there is too little memory.
        """
        self._allocate = allocate
        self._stream = stream
        self._work: list[Memory] = []
        code = kernel_code(cuda.architecture(device))
        try:
            self._native = _native.DeviceLauncher(device, code)
        except CudaError as error:
            if is_shortage(error):
                raise
            raise KernelError(
                f"the driver does not take the fused kernel: {error}; update NVIDIA's driver, or "
                "install a torch for an earlier CUDA"
            ) from None

    def allocate(self, nbytes: int) -> Memory:
        """See ``Launcher``."""
        return self._allocate(nbytes)

    def launch(self, batch: _native.DeviceBatch) -> None:
        """See ``Launcher``. Returns at once."""
        work = self._allocate(batch.work_bytes)
        self._native.launch(batch, work.address, self._stream)
        self._work.append(work)

    def wait(self) -> None:
        """See ``Launcher``."""
        self._native.wait(self._stream)
        self._work.clear()
