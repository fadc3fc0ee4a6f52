"""The operations of samples as a program of the fused kernel."""

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
    """An image where the launcher's memory is, what is done to it, and where the result goes.

    Attributes:
        pixels: address of uint8 pixels, height x width x channels of the plan's images.
        height: of the image.
        width: of the image.
        operations: as ``Executor.draw`` returns them, less those done already.
        out: address of the row of the batch.
    """

    pixels: int
    height: int
    width: int
    operations: Sequence[Operation]
    out: int


class DeviceProgram:
    """Flattens operations of a plan into programs, and runs them.

    One per thread.
    """

    def __init__(self, plan: Plan) -> None:
        self._executor = make_executor(plan)
        self._batch = _native.DeviceBatch(self._executor)

    def launch(self, launcher: Launcher, samples: Sequence[DeviceSample]) -> list[str | None]:
        """Runs the samples' programs.

        Images and results are to stay until ``launcher.wait()``.

        Returns:
            For each sample ``None``, or in words why its operations do not fit it or no program can
            do them; then its row is not written.

        Raises:
            RuntimeError: see ``Launcher.launch``.
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
