"""One prebuilt pipeline per ordered pair of operations, as FusionFlow §5.2 has it: for comparison.

A policy of two operations out of 14 makes 196 pipelines. Twelve op families do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from nvidia.dali import fn

from fusionloader.executors.dali.errors import NotOnDali
from fusionloader.executors.dali.families.family import Family, families
from fusionloader.executors.dali.families.steps import FamilyStep, step_of
from fusionloader.executors.dali.families.tasks import Images
from fusionloader.executors.dali.task import Backend, Graph, Input, Node, PipelineTask
from fusionloader.plan.operations import Operation

# RandAugment's operations by the families that do them.
RAND_AUGMENT = {
    "identity": None,
    "shear_x": "warp",
    "shear_y": "warp",
    "translate_x": "warp",
    "translate_y": "warp",
    "rotate": "warp",
    "brightness": "brightness",
    "saturation": "saturation",
    "contrast": "contrast",
    "sharpness": "sharpness",
    "posterize": "bits",
    "solarize": "bits",
    "autocontrast": "autocontrast",
    "equalize": "equalize",
}
Pair = tuple[str, str]


class CombinationTasks:
    """A pipeline for every ordered pair of RandAugment's operations, for RGB images."""

    def __init__(
        self,
        device: int | None,
        max_batch: int,
        side: int | tuple[int, int],
        names: Sequence[str] = tuple(RAND_AUGMENT),
    ) -> None:
        """Builds a pipeline for each pair of ``names``; see ``FamilyTasks`` for the rest."""
        self._backend = Backend(device, max_batch)
        self._height, self._width = (side, side) if isinstance(side, int) else side
        known = families(3)
        parts = {name: known[family] if (family := RAND_AUGMENT[name]) else None for name in names}
        self._tasks = {
            pair: _task(self._backend, [parts[name] for name in pair])
            for pair in product(names, repeat=2)
        }
        for task in self._tasks.values():
            task.build()

    def augment(self, images: Images, operations: Sequence[Sequence[Operation]]) -> Images:
        """As ``FamilyTasks.augment``, for at most two of RandAugment's operations a sample.

        Raises:
            NotOnDali: there is no pipeline for a sample's operations.
        """
        groups: dict[Pair, list[int]] = {}
        values: list[tuple[Any, ...]] = []
        for sample, drawn in enumerate(operations):
            pair, given = self._pair(drawn)
            groups.setdefault(pair, []).append(sample)
            values.append(given)
        results = list(images)
        most = self._backend.max_batch
        for pair, samples in groups.items():
            for begin in range(0, len(samples), most):
                some = samples[begin : begin + most]
                made = self._tasks[pair].run(
                    [images[sample] for sample in some], [values[sample] for sample in some]
                )
                for sample, result in zip(some, made, strict=True):
                    results[sample] = result
        if isinstance(images, np.ndarray):
            return np.stack(results) if results else images
        return results

    def _pair(self, drawn: Sequence[Operation]) -> tuple[Pair, tuple[Any, ...]]:
        names: list[str] = []
        values: list[Any] = []
        for operation in drawn:
            step = step_of(operation, self._height, self._width)
            if step is not None:
                names.append(rand_augment_name(operation, step))
                values += step.values
        names += ["identity"] * (2 - len(names))
        pair = (names[0], names[1])
        if len(names) > 2 or pair not in self._tasks:
            raise NotOnDali(f"there is no pipeline for the operations {names}")
        return pair, tuple(values)


def rand_augment_name(operation: Operation, step: FamilyStep) -> str:
    """RandAugment's name of a drawn operation; a warp's is told by its matrix."""
    name = str(operation[0])
    if name == "affine" and step.family == "warp":
        _, b, x, d, _, _ = operation[1]
        name = "shear_x" if b else "shear_y" if d else "translate_x" if x else "translate_y"
    if RAND_AUGMENT.get(name) != step.family:
        raise NotOnDali(f"{name} by the family {step.family} is not one of RandAugment's")
    return name


def _task(backend: Backend, parts: list[Family | None]) -> PipelineTask:
    """The pipeline of one family after the other; ``None`` is the identity."""
    inputs: dict[str, Input] = {}
    graphs: list[tuple[Graph, dict[str, str]]] = []
    for place, part in enumerate(parts):
        if part is not None:
            names = {name: f"{name}_{place}" for name in part.inputs}
            inputs |= {names[name]: given for name, given in part.inputs.items()}
            graphs.append((part.graph, names))

    def graph(backend: Backend, images: Node, **nodes: Node) -> Node:
        for once, names in graphs:
            images = once(backend, images, **{name: nodes[full] for name, full in names.items()})
        # The input's memory is not the result's: it is the caller's after the run.
        return images if graphs else fn.copy(images)

    return PipelineTask(backend, graph, inputs)
