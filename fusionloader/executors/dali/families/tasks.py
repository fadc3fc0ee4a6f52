"""Augmentation by op families: samples with the same kind of operation run together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from fusionloader.executors.dali.families.conversion import Conversion, Rows
from fusionloader.executors.dali.families.family import families, task_of
from fusionloader.executors.dali.families.schedule import runs
from fusionloader.executors.dali.families.steps import AFTER_CONVERSION, FamilyStep, step_of
from fusionloader.executors.dali.task import Backend, Image
from fusionloader.plan.operations import Operation
from fusionloader.plan.stages import Convert

# An array of all images, or a sequence of arrays (CPU) or of DALI's tensors (GPU).
Images = TypeVar("Images", npt.NDArray[np.uint8], Sequence[Image])


class FamilyTasks:
    """One prebuilt pipeline per op family, and one for the conversion."""

    def __init__(
        self,
        device: int | None,
        max_batch: int,
        side: int | tuple[int, int],
        channels: Literal[1, 3] = 3,
        convert: Convert | None = None,
    ) -> None:
        """Builds all pipelines and runs each once, so that later runs cost the same.

        Args:
            device: index of a CUDA device, ``None`` for DALI's CPU backend.
            max_batch: samples of a run; more are done in several.
            side: of the images, in pixels, or their height and width.
            channels: of the images.
            convert: the plan's conversion, for ``normalise``.
        """
        self._backend = Backend(device, max_batch, channels)
        self._height, self._width = (side, side) if isinstance(side, int) else side
        known = families(channels)
        self._tasks = {name: task_of(family, self._backend) for name, family in known.items()}
        black = np.zeros((self._height, self._width, channels), np.uint8)
        for name, task in self._tasks.items():
            task.build()
            step = self._try_step(known[name].example)
            if step is not None and step.family == name:
                task.run([black], [step.values])
        self._conversion = (
            None if convert is None else Conversion(self._backend, convert, black.shape)
        )

    def augment(self, images: Images, operations: Sequence[Sequence[Operation]]) -> Images:
        """The images after each one's operations, an array or a sequence as the argument is.

        Operations are those of ``CompiledPlan.draw`` behind the head's; ``"erase"`` is left to
        ``normalise``.

        Raises:
            NotOnDali: no family can do one of them.
        """
        steps = [self.steps(drawn) for drawn in operations]
        results = list(images)
        done = [0] * len(results)
        families = [[step.family for step in chain] for chain in steps]
        for family, samples in runs(families, self._backend.max_batch):
            values = [steps[sample][done[sample]].values for sample in samples]
            made = self._tasks[family].run([results[sample] for sample in samples], values)
            for sample, result in zip(samples, made, strict=True):
                results[sample] = result
                done[sample] += 1
        if isinstance(images, np.ndarray):
            return np.stack(results) if results else images
        return results

    def steps(self, operations: Sequence[Operation]) -> list[FamilyStep]:
        """What the families do for one sample's operations."""
        size = (self._height, self._width, self._backend.channels)
        found = [step_of(each, *size) for each in operations if each[0] not in AFTER_CONVERSION]
        return [step for step in found if step is not None]

    def normalise(
        self, images: Sequence[Image], out: Rows, operations: Sequence[Sequence[Operation]] = ()
    ) -> None:
        """Writes the converted images into the first rows of ``out``.

        Args:
            images: as ``augment`` returns them.
            out: array or tensor of the plan's element type, channels first; on the device, where
                there is one.
            operations: those whose ``"erase"`` is to be done, if any has one.
        """
        if self._conversion is None:
            raise ValueError("FamilyTasks needs the plan's conversion to normalise")
        self._conversion.write(images, out, operations)

    def _try_step(self, operation: Operation) -> FamilyStep | None:
        try:
            return step_of(operation, self._height, self._width, self._backend.channels)
        except ValueError:  # of an image too small for it, which no sample will ask for
            return None
