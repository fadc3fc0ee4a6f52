"""The augment task on a CUDA device: one launch of the fused kernel for a whole group."""

from __future__ import annotations

from collections.abc import Sequence

from fusionloader.executors.device.program import DeviceProgram, DeviceSample, Launcher
from fusionloader.executors.device.task import Image, Row, rows_of_device
from fusionloader.plan.operations import Operation
from fusionloader.plan.stages import Plan


class CudaAugment:
    """Applies operations and writes rows by the kernel of ``csrc/device/``."""

    def __init__(self, plan: Plan, device_id: int) -> None:
        """Raises ``KernelError`` where the CUDA library or the device is missing."""
        import torch

        self._device_id = device_id
        self._program = DeviceProgram(plan)
        self._launcher = Launcher(device_id)
        self._stream = torch.cuda.Stream(device_id)  # type: ignore[no-untyped-call]

    def rows(self, count: int, row_bytes: int) -> Sequence[Row]:
        """See ``Augment``."""
        return rows_of_device(count, row_bytes, self._device_id)

    def run(
        self,
        images: Sequence[Image],
        operations: Sequence[Sequence[Operation]],
        rows: Sequence[Row],
    ) -> list[str | None]:
        """See ``Augment``; ``rows`` are uint8 tensors on the device.

        Waits for this launch, not for the device: rows are whole when it returns.
        """
        import torch

        samples = []
        for image, left, row in zip(images, operations, rows, strict=True):
            array = image.__cuda_array_interface__
            height, width, _ = array["shape"]
            samples.append(DeviceSample(array["data"][0], height, width, left, row.data_ptr()))
        held: list[torch.Tensor] = []

        def work(nbytes: int) -> int:
            # Torch's, so that it can come from where the worker's allocations are sent to.
            held.append(torch.empty(nbytes, dtype=torch.uint8, device=self._device_id))
            return int(held[0].data_ptr())

        stream = self._stream.cuda_stream
        refused = self._program.launch(self._launcher, samples, stream, work)
        self._stream.synchronize()
        return refused
