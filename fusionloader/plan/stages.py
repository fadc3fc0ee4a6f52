"""The typed stages of a plan, as plain values: no torch, no drawing, no pixels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Filter = Literal["box", "bilinear", "hamming", "bicubic", "lanczos"]
Layout = Literal["chw", "hwc"]
ElementType = Literal["uint8", "float16", "bfloat16", "float32", "float64"]


@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """A random window of random area and aspect ratio, resized to ``height`` x ``width`` pixels."""

    height: int
    width: int
    scale: tuple[float, float]
    ratio: tuple[float, float]
    filter: Filter


@dataclass(frozen=True, slots=True)
class ResizeShorterSide:
    """The shorter side becomes ``size`` pixels, the longer at most ``max_size``, ratio kept."""

    size: int
    max_size: int | None
    filter: Filter


@dataclass(frozen=True, slots=True)
class Resize:
    """The whole image becomes ``height`` x ``width`` pixels."""

    height: int
    width: int
    filter: Filter


@dataclass(frozen=True, slots=True)
class CenterCrop:
    """The middle ``height`` x ``width`` pixels; a smaller image is padded with zeros first."""

    height: int
    width: int


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """A random ``height`` x ``width`` window, after padding with the constant ``fill``.

    ``padding`` is (left, top, right, bottom) in pixels; ``fill`` one value per RGB channel.
    """

    height: int
    width: int
    padding: tuple[int, int, int, int]
    pad_if_needed: bool
    fill: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class RandomHorizontalFlip:
    """Mirrors left and right with ``probability``."""

    probability: float


@dataclass(frozen=True, slots=True)
class RandomVerticalFlip:
    """Mirrors top and bottom with ``probability``."""

    probability: float


Stage = (
    RandomResizedCrop
    | ResizeShorterSide
    | Resize
    | CenterCrop
    | RandomCrop
    | RandomHorizontalFlip
    | RandomVerticalFlip
)


@dataclass(frozen=True, slots=True)
class Convert:
    """The last native stage: every 8-bit level of every channel mapped through a table.

    ``table`` holds ``channels * 256`` elements of ``element_type`` in machine byte order, channel
    by channel. It is made by running the user's own conversion transforms on the 256 levels, so it
    is right by construction, whatever their arithmetic.
    """

    element_type: ElementType
    layout: Layout
    table: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ImageKind:
    """What is known of all images before the first stage.

    ``channels`` is 3 (RGB) or 1 (grey); ``height`` and ``width`` in pixels, ``None`` where images
    differ.
    """

    channels: Literal[1, 3] = 3
    height: int | None = None
    width: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done to an image natively: decode to RGB where encoded, ``stages``, ``convert``.

    ``convert`` is ``None`` when Python code follows: the native part then ends with 8-bit pixels,
    height x width x channels. ``height`` and ``width`` are those of the result, ``None`` when they
    differ from image to image. ``decode`` is ``"exact"`` (Pillow's pixels) or ``"fast"``.
    """

    stages: tuple[Stage, ...]
    convert: Convert | None
    height: int | None
    width: int | None
    decode: Literal["exact", "fast"] = "exact"
    channels: Literal[1, 3] = 3
