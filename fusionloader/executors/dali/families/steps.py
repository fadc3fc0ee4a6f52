"""Drawn operations as steps of op families: which family, with which values. No DALI here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fusionloader.executors.dali.errors import NotOnDali
from fusionloader.executors.dali.families.matrices import (
    Matrix,
    Point,
    fixed_point,
    moves_whole_pixels,
    quarter_turns,
    rotation,
)
from fusionloader.plan.operations import Operation
from fusionloader.plan.values import Color

# Those of the rows of a batch, which are erased after the conversion and not by a family.
AFTER_CONVERSION = frozenset({"erase"})
WHITE, BLACK = 255, (0, 0, 0)


@dataclass(frozen=True, slots=True)
class FamilyStep:
    """One operation on one sample: its family, and a value for each of the family's inputs."""

    family: str
    values: tuple[object, ...] = ()


def step_of(operation: Operation, height: int, width: int, channels: int = 3) -> FamilyStep | None:
    """The step that does an operation to an image of that size, ``None`` if nothing changes.

    Raises:
        NotOnDali: there is none.
    """
    name, *arguments = operation
    if name not in _STEPS:
        raise NotOnDali(f"{name} is not among the DALI families")
    return _STEPS[name](_Size(height, width, channels), *arguments)


@dataclass(frozen=True, slots=True)
class _Size:
    height: int
    width: int
    channels: int


# From the image's size and an operation's arguments.
_Convert = Callable[..., FamilyStep | None]


def _blend(family: str) -> _Convert:
    def step(size: _Size, factor: float) -> FamilyStep | None:
        return None if factor == 1 else FamilyStep(family, (_factor(factor),))

    return step


def _factor(factor: float) -> float:
    """Larger ones give nothing new, and an infinite one no number where levels are equal."""
    if math.isnan(factor):
        raise ValueError("a factor must be a number")
    return min(max(factor, -1e6), 1e6)


def _saturation(size: _Size, factor: float) -> FamilyStep | None:
    unchanged = factor == 1 or size.channels == 1
    return None if unchanged else FamilyStep("saturation", (_factor(factor),))


def _sharpness(size: _Size, factor: float) -> FamilyStep | None:
    """Pillow leaves images without inner pixels alone."""
    if factor == 1 or size.height < 3 or size.width < 3:
        return None
    return FamilyStep("sharpness", (_factor(factor), (size.height - 2, size.width - 2)))


def _bits(add: int = 0, mask: int = WHITE, inverted_from: int = WHITE + 1) -> FamilyStep:
    return FamilyStep("bits", (add, mask, inverted_from))


def _posterize(size: _Size, bits: int) -> FamilyStep | None:
    mask = 0xFF00 >> min(max(int(bits), 0), 8) & WHITE
    return None if mask == WHITE else _bits(mask=mask)


def _solarize(size: _Size, threshold: float) -> FamilyStep | None:
    if threshold > WHITE:
        return None
    return _bits(inverted_from=max(math.ceil(threshold), 0))


def _solarize_add(size: _Size, add: float) -> FamilyStep | None:
    whole = min(max(int(add), -WHITE), WHITE)
    return _bits(add=whole) if whole else None


def _equalize(size: _Size) -> FamilyStep:
    return FamilyStep("equalize", (size.height * size.width,))


def _blur(size: _Size, width: int, height: int, across: float, down: float) -> FamilyStep | None:
    if width // 2 >= size.width or height // 2 >= size.height:
        raise ValueError(f"a blur of {width} x {height} pixels needs a larger image")
    unchanged = width == height == 1
    return None if unchanged else FamilyStep("blur", ((height, width), (down, across)))


def _affine(size: _Size, matrix: Matrix, interpolation: str, fill: Color) -> FamilyStep | None:
    return _warp(tuple(matrix), interpolation, fill, size)


def _rotate(
    size: _Size,
    angle: float,
    interpolation: str,
    expand: bool,
    centre: Point | None,
    fill: Color,
) -> FamilyStep | None:
    turns = quarter_turns(angle) if centre is None else None
    square = size.width == size.height
    if turns == 0:
        return None
    if turns is not None and (turns == 2 or square):
        # Pillow moves pixels and filters nothing.
        matrix = rotation(90.0 * turns, (size.width / 2, size.height / 2))
        return _nearest(matrix, BLACK, size)
    if expand:
        raise NotOnDali("rotate with expand=True changes the size of an image")
    middle = (size.width / 2, size.height / 2) if centre is None else centre
    return _warp(rotation(angle, middle), interpolation, fill, size)


def _warp(matrix: Matrix, interpolation: str, fill: Color, size: _Size) -> FamilyStep | None:
    if moves_whole_pixels(matrix) and matrix[2] == 0 and matrix[5] == 0:
        return None
    if interpolation == "nearest" or moves_whole_pixels(matrix):
        return _nearest(fixed_point(matrix, size.height, size.width), fill, size)
    if interpolation != "bilinear":
        raise NotOnDali(f"DALI's warps have no {interpolation} filter")
    return FamilyStep("bilinear_warp", (_rows(matrix), _color(fill, size)))


def _nearest(matrix: Matrix, fill: Color, size: _Size) -> FamilyStep:
    if any(fill[: size.channels]):
        return FamilyStep("filled_warp", (_rows(matrix), _color(fill, size)))
    return FamilyStep("warp", (_rows(matrix),))


def _rows(matrix: Matrix) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return matrix[:3], matrix[3:]


def _color(fill: Color, size: _Size) -> tuple[int, ...]:
    return tuple(int(level) for level in fill[: size.channels])


def _hflip(size: _Size) -> FamilyStep:
    return FamilyStep("warp", (_rows((-1.0, 0.0, float(size.width), 0.0, 1.0, 0.0)),))


def _vflip(size: _Size) -> FamilyStep:
    return FamilyStep("warp", (_rows((1.0, 0.0, 0.0, 0.0, -1.0, float(size.height))),))


def _cutout(size: _Size, x: int, y: int, width: int, height: int, fill: Color) -> FamilyStep | None:
    """Only the part of the rectangle within the image."""
    left, right = np.clip([x, x + width], 0, size.width).tolist()
    top, bottom = np.clip([y, y + height], 0, size.height).tolist()
    if right <= left or bottom <= top:
        return None
    return FamilyStep("cutout", ((top, left), (bottom - top, right - left), _color(fill, size)))


def _in_head(name: str) -> _Convert:
    def step(size: _Size, *arguments: object) -> FamilyStep:
        raise NotOnDali(f"{name} is done by the head, before all other operations")

    return step


_STEPS: dict[str, _Convert] = {
    "crop": _in_head("crop"),
    "resize": _in_head("resize"),
    "hflip": _hflip,
    "vflip": _vflip,
    "affine": _affine,
    "rotate": _rotate,
    "brightness": _blend("brightness"),
    "contrast": _blend("contrast"),
    "saturation": _saturation,
    "grayscale": lambda size: _saturation(size, 0.0),
    "sharpness": _sharpness,
    "posterize": _posterize,
    "solarize": _solarize,
    "solarize_add": _solarize_add,
    "invert": lambda size: _bits(inverted_from=0),
    "autocontrast": lambda size: FamilyStep("autocontrast"),
    "equalize": _equalize,
    "blur": _blur,
    "cutout": _cutout,
}
