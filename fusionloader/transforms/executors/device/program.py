"""Operations of samples as programs of the fused kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusionloader import _native
from fusionloader.transforms.executors.device.launchers import Launcher
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.stages import Operation, Plan

__all__ = ["DeviceProgram", "DeviceSample"]


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """An image in the launcher's memory, operations to apply, and memory for the result.

    Attributes:
        pixels: address of the uint8 pixels, height x width x the plan's ``channels``.
        height: height of the image, in pixels.
        width: width of the image, in pixels.
        operations: operations of ``Executor.draw``, without those that were applied before.
        out: address of the sample's row in the batch.
    """

    pixels: int
    height: int
    width: int
    operations: Sequence[Operation]
    out: int


class DeviceProgram:
    """Turns operations of a plan into programs, and runs them; each thread needs its own."""

    def __init__(self, plan: Plan) -> None:
        self._executor = make_executor(plan)
        self._batch = _native.DeviceBatch(self._executor)

    def launch(self, launcher: Launcher, samples: Sequence[DeviceSample]) -> list[str | None]:
        """Runs the samples' programs.

        Images and rows must exist until ``launcher.wait()`` returns.

        Returns:
            For each sample ``None``, or why its row is not written: its operations do not fit the
            image, or cannot be made a program.

        Raises:
            RuntimeError: the driver or the allocator failed.
        """
        batch, refused = self._batch, list[str | None]()
        batch.clear()
        for sample in samples:
            try:
                batch.add(sample.operations, sample.pixels, sample.width, sample.height, sample.out)
            except ValueError as error:
                refused.append(str(error))
            else:
                refused.append(None)
        if batch.samples > 0:
            launcher.launch(batch)
        return refused
