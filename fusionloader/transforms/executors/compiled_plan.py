"""A compiled transform to inspect and to try: which operations a sample gets, and its result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from fusionloader import _native
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.executors.results import converted, result_array, result_like
from fusionloader.transforms.plan.arguments import Transform
from fusionloader.transforms.plan.compiled_transform import CompiledTransform, Tail
from fusionloader.transforms.plan.stages import Decode, ImageKind, Operation, Plan
from fusionloader.transforms.plan.transforms import compile_transform

Pixels = Image.Image | npt.NDArray[np.uint8]


class CompiledPlan:
    """A compiled transform.

    Attributes:
        plan: the native stages.
        tail: the part that runs in Python: a callable on the PIL image that the native stages make,
            or on a tensor if these work on floats; ``None`` if there is none.
    """

    def __init__(self, compiled: CompiledTransform) -> None:
        self.plan: Plan = compiled.plan
        self.tail: Tail | None = compiled.tail
        self._compiled = compiled
        self._made: dict[int, _native.Executor] = {}  # by process

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
        """Returns the operations that an image gets, with all parameters drawn.

        They are the operations that a loader with this seed applies to the sample in this epoch.

        Args:
            width: width of the image, in pixels.
            height: height of the image, in pixels.
            seed: seed of the loader.
            epoch: number of the epoch.
            index: index of the sample in the dataset.
            occurrence: how many times the index came before in the epoch.

        Returns:
            Tuples of a name and arguments, such as ``("crop", x, y, width, height, fill)``,
            ``("resize", width, height, "bilinear")`` or ``("brightness", 1.2)``.

        Raises:
            ValueError: an image of that size cannot be transformed.
        """
        return self._executor.draw(seed, epoch, index, occurrence, width, height)

    def apply(self, image: Pixels, operations: Sequence[Operation]) -> Any:
        """Returns the result of the transform for an image and drawn operations.

        Args:
            image: PIL image, or uint8 array of height x width x channels.
            operations: operations as ``draw`` returns them, or written by hand.

        Returns:
            The transform's result. A Python ``tail`` draws its random choices again.

        Raises:
            ValueError: the operations do not fit the image.
        """
        convert, height, width = self.plan.convert, self.plan.height, self.plan.width
        if convert is None:
            made: Any = self.picture(image, operations)
        elif height is not None and width is not None:
            made = result_like(self.plan)
            out = made.view(torch.uint8).numpy().reshape(-1).data
            self._executor.run_pixels_with(self._pixels(image), operations, out)
        elif self.plan.works_on_floats:
            floats = self._executor.pixels_with(self._pixels(image), operations)
            made = torch.from_numpy(result_array(*floats, self.plan).copy())
        else:
            made = converted(self.picture(image, operations), self.plan)
        return made if self.tail is None else self.tail(made)

    def picture(self, image: Pixels, operations: Sequence[Operation]) -> Image.Image:
        """Returns the image after the operations, before its conversion and the Python ``tail``.

        Arguments and errors are those of ``apply``. Of a plan that works on floats there is none.
        """
        if self.plan.works_on_floats:
            raise ValueError("the plan works on floats, of which there is no picture: use apply()")
        raw, (height, width) = self._executor.pixels_with(self._pixels(image), operations)
        mode = "L" if self.plan.result_channels == 1 else "RGB"
        return Image.frombytes(mode, (width, height), raw)

    def explain(self) -> str:
        """Returns a line per transform: native, or Python and why."""
        return self._compiled.explain()

    def __repr__(self) -> str:
        return f"CompiledPlan(\n{self.explain()}\n)"

    def __reduce__(self) -> tuple[type[CompiledPlan], tuple[CompiledTransform]]:
        return CompiledPlan, (self._compiled,)  # an executor cannot be pickled

    @property
    def _executor(self) -> _native.Executor:
        # A forked child neither uses nor frees its parent's: another thread may have been using it.
        pid = os.getpid()
        if pid not in self._made:
            self._made[pid] = make_executor(self.plan)
        return self._made[pid]

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
        transform: callable on a PIL image: of torchvision, of timm or any other. From the first
            unknown part on it runs in Python.
        decode: ``"exact"`` or ``"fast"``, as for ``FusionLoader``.
        images: what is known of the images; by default RGB of any size.
    """
    return CompiledPlan(compile_transform(transform, decode, images or ImageKind()))
