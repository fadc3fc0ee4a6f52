"""Arguments of transforms, converted to values of stages; unknown ones are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from fusionloader.transforms.plan.stages import Color, Filter, Interpolation, Stage

if TYPE_CHECKING:
    import torch

# A transform, and an argument of one: torchvision and timm have no types, and accept anything.
Transform: TypeAlias = Any
Argument: TypeAlias = Any

_FILTERS: dict[str, Filter] = {
    "box": "box",
    "bilinear": "bilinear",
    "hamming": "hamming",
    "bicubic": "bicubic",
    "lanczos": "lanczos",
}
_INTERPOLATIONS: dict[str, Interpolation] = {
    "nearest": "nearest",
    "bilinear": "bilinear",
    "bicubic": "bicubic",
}


# How deep containers of transforms may be nested; csrc/ops/limits.hpp has the same number.
MOST_NESTED = 32


class NotCompiled(Exception):
    """A transform cannot be compiled and stays in Python; the message says why."""


class NestedTooDeep(NotCompiled):
    """Containers are nested more than ``MOST_NESTED`` levels deep."""

    def __init__(self) -> None:
        super().__init__(f"its transforms are nested more than {MOST_NESTED} deep")


class NeedsFloats(NotCompiled):
    """A transform has a stage that works on floats, and none that works on levels."""

    def __init__(self) -> None:
        super().__init__("it works on floats: put it before the conversion")


@dataclass(frozen=True, slots=True)
class Context:
    """What is known of the image that a transform gets.

    Attributes:
        channels: number of its channels.
        held: ``"pil"``, ``"tensor"`` (uint8 levels), ``"floats"`` (float32) or ``"other"`` (any
            other tensor).
        exact: whether on tensors the transform must give the levels of torchvision for tensors,
            which differ from those for PIL images.
        depth: number of random containers around the transform.
        elements: elements that the tensor has for each level, channels x 256, or x 0 if they are
            not known; ``None`` if it holds the levels themselves.
        in_plan: whether the stage is part of a plan, which may work on floats.
        on_floats: whether the stages so far end with ones that work on floats.
        size: height and width in pixels; ``None`` if images differ or it is not known.
    """

    channels: int
    held: str
    exact: bool = True
    depth: int = 0
    elements: torch.Tensor | None = None
    in_plan: bool = False
    on_floats: bool = False
    size: tuple[int | None, int | None] = (None, None)

    def require_levels(self, same_on_tensors: bool) -> None:
        """Raises ``NotCompiled`` if native code would give other levels than torchvision.

        Args:
            same_on_tensors: whether torchvision gives uint8 tensors the levels of PIL images.
        """
        if self.held in ("floats", "other"):
            raise NotCompiled("it works on floats: put it before the conversion")
        if self.held == "tensor" and self.exact and not same_on_tensors:
            raise NotCompiled(
                "torchvision rounds otherwise on tensors: put it before the conversion"
            )

    def require_pil(self) -> None:
        if self.held != "pil":
            raise NotCompiled("it works on PIL images only: put it before the conversion")

    def border(self, values: Color) -> Color:
        """Returns the color of a border that the transform adds with these values.

        If the levels are converted already, these are the levels that became the values.

        Raises:
            NeedsFloats: no levels became the values.
        """
        if self.elements is None or self.on_floats:
            return values
        levels = [0, 0, 0]
        for channel, row in enumerate(self.elements):
            same = (row == values[channel]) & ~row.signbit()
            if not same.any():
                raise NeedsFloats
            levels[channel] = int(same.nonzero()[0])
        red, green, blue = levels if len(self.elements) == 3 else [levels[0]] * 3
        return red, green, blue

    def inside(self) -> Context:
        """Returns the context of the transforms in a container."""
        if self.depth == MOST_NESTED:
            raise NestedTooDeep
        return replace(self, depth=self.depth + 1, size=(None, None))


# Returns the stage of a transform; raises NotCompiled where there is none.
Converter = Callable[[Transform, Context], Stage]


def for_both_versions(converters: Mapping[str, Converter]) -> dict[type, Converter]:
    """Returns converters by class, for the classes of torchvision's v1 and v2 with these names."""
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    return {getattr(each, name): made for each in (v1, v2) for name, made in converters.items()}


def pair(size: Argument) -> tuple[int, int]:
    """Returns height and width of a size as torchvision takes it."""
    sizes = [size, size] if isinstance(size, int) else list(size)
    if len(sizes) == 1:
        sizes *= 2
    if len(sizes) != 2 or not all(isinstance(s, int) and s > 0 for s in sizes):
        raise NotCompiled(f"size={size!r}")
    return sizes[0], sizes[1]


def numbers(values: Argument, name: str) -> tuple[float, float]:
    try:
        first, second = (float(value) for value in values)
    except (TypeError, ValueError):
        raise NotCompiled(f"{name}={values!r}") from None
    return first, second


def color(fill: Argument, channels: int) -> Color:
    """Returns a fill as three levels; torchvision's v2 has a dict of fills by type."""
    if isinstance(fill, dict):
        # Without "others", images of some types have the fill 0.
        if "others" not in fill or len(set(map(repr, fill.values()))) != 1:
            raise NotCompiled(f"fill={fill!r}")
        fill = next(iter(fill.values()))
    if fill is None:
        fill = 0
    values = [fill] if isinstance(fill, (int, float)) else fill
    if not isinstance(values, (list, tuple)) or len(values) not in (1, channels):
        raise NotCompiled(f"fill={fill!r}")
    values = list(values) * (3 if len(values) == 1 else 1)
    if any(value != int(value) or not 0 <= value <= 255 for value in values):
        raise NotCompiled(f"fill={fill!r}")
    red, green, blue = (int(value) for value in values)
    return red, green, blue


def is_unfilled(fill: Argument) -> bool:
    """Whether a fill that ``color`` takes is ``None`` for images of all types."""
    return (next(iter(fill.values())) if isinstance(fill, dict) else fill) is None


def filter_name(interpolation: Argument) -> Filter:
    name = _mode(interpolation)
    if name not in _FILTERS:
        raise NotCompiled(f"interpolation {name!r}")
    return _FILTERS[name]


def interpolation_name(interpolation: Argument) -> Interpolation:
    name = _mode(interpolation)
    if name not in _INTERPOLATIONS:
        raise NotCompiled(f"interpolation {name!r}")
    return _INTERPOLATIONS[name]


def _mode(interpolation: Argument) -> Argument:
    from torchvision.transforms import InterpolationMode

    if isinstance(interpolation, int) and not isinstance(interpolation, InterpolationMode):
        from torchvision.transforms.functional import _interpolation_modes_from_int

        interpolation = _interpolation_modes_from_int(interpolation)
    return getattr(interpolation, "value", interpolation)


def padding_sides(padding: Argument) -> tuple[int, int, int, int]:
    """Returns left, top, right and bottom of a padding as torchvision's ``Pad`` takes it."""
    sides = [padding] if isinstance(padding, int) else list(padding)
    if len(sides) == 1:
        sides *= 4
    elif len(sides) == 2:
        sides *= 2
    if len(sides) != 4 or not all(isinstance(side, int) for side in sides):
        raise NotCompiled(f"padding={padding!r}")
    if min(sides) < 0:
        raise NotCompiled("negative padding")
    left, top, right, bottom = sides
    return left, top, right, bottom
