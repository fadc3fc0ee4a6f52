"""A compiled transform to look at and to try: what a sample will get, and what it becomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from fusionloader import _native
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.executors.results import converted, result_like
from fusionloader.transforms.plan.arguments import Transform
from fusionloader.transforms.plan.stages import Decode, ImageKind, Operation, Plan
from fusionloader.transforms.plan.transforms import CompiledTransform, Tail, compile_transform

Pixels = Image.Image | npt.NDArray[np.uint8]


class CompiledPlan:
    """What a transform was compiled to.

    Attributes:
        plan: its native stages.
        tail: what is left of it for Python: a callable on the PIL image that the native stages
            make, ``None`` if nothing is.
    """

    def __init__(self, compiled: CompiledTransform) -> None:
        self.plan: Plan = compiled.plan
        self.tail: Tail | None = compiled.tail
        self._compiled = compiled
        self._made: _native.Executor | None = None

    def draw(
        self,
        width: int,
        height: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        index: int = 0,
        occurrence: int = 0,
    ) -> list[Operation]:
        """Returns the operations that an image gets, with all parameters decided.

        They are those that a loader with that ``seed`` gives to sample ``index`` of that epoch, the
        ``occurrence``-th time that it comes up.

        Args:
            width: of the image, in pixels.
            height: of the image, in pixels.
            seed: of the loader.
            epoch: number of the epoch.
            index: of the sample.
            occurrence: how often the index has come up in the epoch before.

        Returns:
            Tuples of a name and arguments, such as ``("crop", x, y, width, height, fill)``,
            ``("resize", width, height, "bilinear")`` or ``("brightness", 1.2)``.

        Raises:
            ValueError: an image of that size cannot be transformed.
        """
        return self._executor.draw(seed, epoch, index, occurrence, width, height)

    def apply(self, image: Pixels, operations: Sequence[Operation]) -> Any:
        """Returns what the transform makes of the image with these operations.

        Args:
            image: PIL image, or uint8 array of height x width x channels.
            operations: as ``draw`` returns them, or written by hand.

        Returns:
            What the transform returns; random choices of a Python ``tail`` are made anew.

        Raises:
            ValueError: the operations do not fit the image.
        """
        convert, height, width = self.plan.convert, self.plan.height, self.plan.width
        if convert is not None and height is not None and width is not None:
            result = result_like(self.plan)
            out = result.view(torch.uint8).numpy().reshape(-1).data
            self._executor.run_pixels_with(self._pixels(image), operations, out)
            return result
        made = self.picture(image, operations)
        if convert is not None:
            return converted(made, self.plan)
        return made if self.tail is None else self.tail(made)

    def picture(self, image: Pixels, operations: Sequence[Operation]) -> Image.Image:
        """Returns what the operations make of the image, before it is converted or goes to Python.

        Takes and raises what ``apply`` does.
        """
        raw, (height, width) = self._executor.pixels_with(self._pixels(image), operations)
        mode = "L" if self.plan.result_channels == 1 else "RGB"
        return Image.frombytes(mode, (width, height), raw)

    def explain(self) -> str:
        """Returns a line per transform: native, or Python and why."""
        return self._compiled.explain()

    def __repr__(self) -> str:
        return f"CompiledPlan(\n{self.explain()}\n)"

    def __reduce__(self) -> tuple[type[CompiledPlan], tuple[CompiledTransform]]:
        return CompiledPlan, (self._compiled,)  # an executor is of one process

    @property
    def _executor(self) -> _native.Executor:
        if self._made is None:
            self._made = make_executor(self.plan)
        return self._made

    def _pixels(self, image: Pixels) -> memoryview:
        if isinstance(image, Image.Image):
            pixels = np.asarray(image.convert("L" if self.plan.channels == 1 else "RGB"))
        else:
            pixels = np.ascontiguousarray(image)
        if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
            found = f"{pixels.dtype} of shape {pixels.shape}"
            raise ValueError(f"pixels are uint8, height x width x channels; this is {found}")
        return pixels.reshape(*pixels.shape[:2], -1).data


def compile_plan(
    transform: Transform, *, decode: Decode = "exact", images: ImageKind | None = None
) -> CompiledPlan:
    """Compiles a transform as ``FusionLoader`` does.

    Args:
        transform: callable on a PIL image: torchvision's, timm's or anything else, of which the
            part that is not known is left for Python.
        decode: ``"exact"`` or ``"fast"``, as ``FusionLoader`` has it.
        images: what is known of the images; RGB of any size by default.
    """
    return CompiledPlan(compile_transform(transform, decode, images or ImageKind()))
