"""Native pixels against torchvision's, on Pillow images and on tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torchvision.transforms import _functional_tensor
from torchvision.transforms.v2 import InterpolationMode, functional

from benchmarks.fidelity.cases import cases
from fusionloader import _native
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.executors.replay import replay
from fusionloader.transforms.plan.stages import Operation, Plan

Pixels = npt.NDArray[np.uint8]


@dataclass
class Difference:
    """How far values are from those wanted, in levels, over a number of cases."""

    cases: int = 0
    values: int = 0
    different: int = 0
    by_levels: int = 0  # by more than one level
    total: float = 0.0
    most: float = 0.0

    def add(self, ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> None:
        """Counts one case; an infinite difference where not even the size is right."""
        self.cases += 1
        if ours.shape != theirs.shape:
            self.most = float("inf")
            return
        distance = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
        self.values += distance.size
        self.different += int(np.count_nonzero(distance))
        self.by_levels += int(np.count_nonzero(distance > 1))
        self.total += float(distance.sum())
        self.most = max(self.most, float(distance.max(initial=0)))

    @property
    def mean(self) -> float:
        """The mean difference of all values."""
        return self.total / self.values if self.values else 0.0

    @property
    def share(self) -> float:
        """The part of the values that differ at all."""
        return self.different / self.values if self.values else 0.0

    @property
    def share_by_levels(self) -> float:
        """The part of the values that differ by more than one level."""
        return self.by_levels / self.values if self.values else 0.0


class Native:
    """Operations done natively."""

    def __init__(self) -> None:
        self._executors: dict[int, _native.Executor] = {}

    def __call__(self, image: Image.Image, operation: Operation) -> Pixels:
        """Returns the pixels, height x width x channels."""
        pixels = array(image)
        channels = pixels.shape[2]
        if channels not in self._executors:
            kind: Literal[1, 3] = 1 if channels == 1 else 3
            plan = Plan((), None, None, None, "exact", kind, kind)
            self._executors[channels] = make_executor(plan)
        made, (height, width) = self._executors[channels].pixels_with(pixels.data, [operation])
        return np.frombuffer(made, np.uint8).reshape(height, width, channels)


def array(image: Image.Image) -> Pixels:
    """An image's pixels, height x width x channels."""
    return np.asarray(image).reshape(image.height, image.width, -1)


def against_pillow(row: str, chosen: dict[str, Image.Image], every: int = 1) -> Difference:
    """A row's cases, or ``every`` so many of them, against torchvision on Pillow images."""
    native = Native()
    difference = Difference()
    for image, operation in _some(cases(row, chosen), every):
        difference.add(native(image, operation), array(replay(image, [operation])))
    return difference


def against_tensors(row: str, chosen: dict[str, Image.Image], every: int = 1) -> Difference | None:
    """The same against torchvision on uint8 tensors; ``None`` where it has no such operation.

    Cases that it refuses on tensors, or answers with another size than on images, are left out.
    """
    native = Native()
    difference = Difference()
    for image, operation in _some(cases(row, chosen), every):
        tensor = torch.from_numpy(array(image).copy()).permute(2, 0, 1).contiguous()
        try:
            done = on_tensor(tensor, operation)
        except (RuntimeError, IndexError):  # a mirrored border wider than the image
            continue
        if done is None:
            return None
        ours, theirs = native(image, operation), done.permute(1, 2, 0).numpy()
        if ours.shape == theirs.shape:
            difference.add(ours, theirs)
    return difference


def _some(
    found: Iterable[tuple[Image.Image, Operation]], every: int
) -> Iterator[tuple[Image.Image, Operation]]:
    return islice(found, 0, None, every)


def on_tensor(image: torch.Tensor, operation: Operation) -> torch.Tensor | None:
    """An operation done by torchvision's functional on a uint8 tensor, channels first."""
    name, *arguments = operation
    done: torch.Tensor | None = None
    if name in _ON_TENSORS:
        done = _ON_TENSORS[name](image, *arguments)
    return done


def _crop(
    image: torch.Tensor, x: int, y: int, width: int, height: int, fill: tuple[int, ...]
) -> Any:
    sides = [max(-x, 0), max(-y, 0)]
    sides += [max(x + width - image.shape[2], 0), max(y + height - image.shape[1], 0)]
    image = functional.pad(image, sides, _fill(image, fill))
    return functional.crop(image, y + sides[1], x + sides[0], height, width)


def _fill(image: torch.Tensor, fill: tuple[int, ...]) -> list[float]:
    return [float(level) for level in fill[: image.shape[0]]]


def _resize(
    image: torch.Tensor, width: int, height: int, filter: str, box: tuple[float, ...] | None = None
) -> Any:
    if filter not in ("bilinear", "bicubic") or box is not None:
        return None
    mode = InterpolationMode(filter)
    return functional.resize(image, [height, width], interpolation=mode, antialias=True)


def _affine(
    image: torch.Tensor, matrix: tuple[float, ...], interpolation: str, fill: tuple[int, ...]
) -> Any:
    if interpolation == "bicubic":
        return None
    # Tensors are transformed about their middle.
    a, b, c, d, e, f = matrix
    x, y = image.shape[2] * 0.5, image.shape[1] * 0.5
    centred = [a, b, a * x + b * y + c - x, d, e, d * x + e * y + f - y]
    return _functional_tensor.affine(image, centred, interpolation, _fill(image, fill))


def _perspective(
    image: torch.Tensor, coefficients: tuple[float, ...], interpolation: str, fill: tuple[int, ...]
) -> Any:
    if interpolation == "bicubic":
        return None
    filled = _fill(image, fill)
    return _functional_tensor.perspective(image, list(coefficients), interpolation, filled)


def _rotate(
    image: torch.Tensor,
    angle: float,
    interpolation: str,
    expand: bool,
    centre: list[float] | None,
    fill: tuple[int, ...],
) -> Any:
    if interpolation == "bicubic":
        return None
    mode = InterpolationMode(interpolation)
    return functional.rotate(image, angle, mode, expand, centre, _fill(image, fill))


def _pad(
    image: torch.Tensor,
    left: int,
    top: int,
    right: int,
    bottom: int,
    mode: str,
    fill: tuple[int, ...],
) -> Any:
    filled = _fill(image, fill) if mode == "constant" else None
    return functional.pad(image, [left, top, right, bottom], filled, mode)


def _functional(name: str) -> Callable[..., Any]:
    def call(image: torch.Tensor, *arguments: Any) -> Any:
        return getattr(functional, name)(image, *arguments)

    return call


def _blur(image: torch.Tensor, width: int, height: int, across: float, down: float) -> Any:
    return _functional("gaussian_blur")(image, [width, height], [across, down])


def _grayscale(image: torch.Tensor) -> Any:
    return _functional("rgb_to_grayscale")(image, image.shape[0])


_ON_TENSORS: dict[str, Callable[..., Any]] = {
    "crop": _crop,
    "resize": _resize,
    "hflip": _functional("horizontal_flip"),
    "vflip": _functional("vertical_flip"),
    **{
        name: _functional(f"adjust_{name}")
        for name in ("brightness", "contrast", "saturation", "hue", "sharpness")
    },
    **{
        name: _functional(name)
        for name in ("posterize", "solarize", "invert", "autocontrast", "equalize")
    },
    "grayscale": _grayscale,
    "blur": _blur,
    "affine": _affine,
    "perspective": _perspective,
    "rotate": _rotate,
    "pad": _pad,
}
