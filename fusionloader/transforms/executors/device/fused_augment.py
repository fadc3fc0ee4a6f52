"""The augment task by the fused kernel: one launch per group of samples."""

from __future__ import annotations

from collections.abc import Sequence

from fusionloader.transforms.executors.device.launchers import Launcher
from fusionloader.transforms.executors.device.program import DeviceProgram, DeviceSample
from fusionloader.transforms.executors.device.task import Image, Row, rows_in
from fusionloader.transforms.plan.stages import Operation, Plan


class FusedAugment:
    """Applies operations and writes rows by the kernel of ``csrc/device/``."""

    def __init__(self, plan: Plan, launcher: Launcher) -> None:
        self._channels = plan.channels
        self._program = DeviceProgram(plan)
        self._launcher = launcher

    def rows(self, count: int, row_bytes: int) -> Sequence[Row]:
        """Returns ``count`` new rows that ``run`` can write to, for a warm-up."""
        return rows_in(self._launcher.allocate(count * row_bytes), count)

    def run(
        self,
        images: Sequence[Image],
        operations: Sequence[Sequence[Operation]],
        rows: Sequence[Row],
    ) -> list[str | None]:
        """Returns for each image ``None``, or why its row could not be written.

        It waits for its own launch, not for the whole device.

        Args:
            images: uint8 images, height x width x channels, on the device or in host memory.
            operations: operations that are left to do for each image.
            rows: memory for the result of each image.
        """
        refused: list[str | None] = [None] * len(images)
        samples: dict[int, DeviceSample] = {}
        for number, (image, left, row) in enumerate(zip(images, operations, rows, strict=True)):
            address, height, width, channels = _read_layout(image)
            if channels == self._channels:
                samples[number] = DeviceSample(address, height, width, left, row.address)
            else:
                refused[number] = f"an image of {channels} channels, not of {self._channels}"
        done = self._program.launch(self._launcher, list(samples.values()))
        self._launcher.wait()
        for number, why in zip(samples, done, strict=True):
            refused[number] = why
        return refused


def _read_layout(image: Image) -> tuple[int, int, int, int]:
    """Returns address, height, width and channels of an array on the host or on a device."""
    layout = getattr(image, "__cuda_array_interface__", None) or image.__array_interface__
    height, width, channels = layout["shape"]
    if layout.get("strides") not in (None, (width * channels, channels, 1)):
        raise ValueError("an image is not in one piece")
    return layout["data"][0], height, width, channels
