"""Run programs of the fused kernel: on a CUDA device, or from the same source on the host."""

from __future__ import annotations

from collections.abc import Callable

from fusionloader import _native
from fusionloader._native import cuda
from fusionloader.system.gpu_memory.errors import CudaError
from fusionloader.transforms.executors.device.kernel import kernel_code
from fusionloader.transforms.executors.device.memory import Memory, allocate_on_host
from fusionloader.transforms.executors.device_errors import is_shortage

__all__ = ["CudaLauncher", "HostLauncher", "KernelError", "Launcher"]


class KernelError(RuntimeError):
    """The driver refuses the kernel; the message says why, and what to do."""


class HostLauncher:
    """Runs programs in the calling thread."""

    def allocate(self, nbytes: int) -> Memory:
        """Returns new memory of the host."""
        return allocate_on_host(nbytes)

    def launch(self, batch: _native.DeviceBatch) -> None:
        """Runs the batch before it returns."""
        block, work = allocate_on_host(batch.nbytes), allocate_on_host(batch.work_bytes)
        batch.write(block.address)
        _native.run_block_on_host(block.address, work.address, batch.samples)

    def wait(self) -> None:
        """Returns at once: ``launch`` has waited."""


class CudaLauncher:
    """Launches programs on one stream of a CUDA device; each thread needs its own."""

    def __init__(self, device: int, stream: int, allocate: Callable[[int], Memory]) -> None:
        """Loads the kernel; compiles it first if necessary.

        Args:
            device: index of the CUDA device.
            stream: ``cudaStream_t`` of the device, as a number; it must outlive this object.
            allocate: function that allocates a number of bytes of the device's memory.

        Raises:
            NvrtcError: the kernel cannot be compiled.
            KernelError: the driver refuses the kernel.
            RuntimeError: memory ran out.
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
        """Returns new memory of the device."""
        return self._allocate(nbytes)

    def launch(self, batch: _native.DeviceBatch) -> None:
        """Queues a batch of at least one sample on the stream.

        Raises:
            RuntimeError: the driver or the allocator failed.
        """
        work = self._allocate(batch.work_bytes)
        self._native.launch(batch, work.address, self._stream)
        self._work.append(work)

    def wait(self) -> None:
        """Waits for the stream, and frees working memory."""
        self._native.wait(self._stream)
        self._work.clear()


Launcher = HostLauncher | CudaLauncher
"""Runs batches of programs."""
