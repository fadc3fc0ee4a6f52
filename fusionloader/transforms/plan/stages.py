"""The typed stages of a plan, as plain values: no torch, no drawing, no pixels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fusionloader.transforms.plan.operations import Operation
from fusionloader.transforms.plan.policy_stages import AugMix as AugMix
from fusionloader.transforms.plan.policy_stages import Magnitude as Magnitude
from fusionloader.transforms.plan.policy_stages import Mixing as Mixing
from fusionloader.transforms.plan.policy_stages import PolicyOp as PolicyOp
from fusionloader.transforms.plan.policy_stages import PolicyStep as PolicyStep
from fusionloader.transforms.plan.policy_stages import RandomPolicy as RandomPolicy
from fusionloader.transforms.plan.values import Channels as Channels
from fusionloader.transforms.plan.values import Color as Color
from fusionloader.transforms.plan.values import Decode as Decode
from fusionloader.transforms.plan.values import Filter as Filter
from fusionloader.transforms.plan.values import Interpolation as Interpolation
from fusionloader.transforms.plan.values import PadMode as PadMode
from fusionloader.transforms.plan.values import Range as Range

ElementType = Literal["uint8", "float16", "bfloat16", "float32", "float64"]


@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """A random window of random area and aspect ratio, resized to ``height`` x ``width`` pixels.

    One of ``filters`` is chosen for each image.
    """

    height: int
    width: int
    scale: Range
    ratio: Range
    filters: tuple[Filter, ...]


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
class ResizeKeepRatio:
    """The image divided by a ratio between those of its sides to ``height`` x ``width`` pixels.

    That is the smaller one for ``longest`` = 0 and the larger one for 1. With a probability each
    the result is scaled and stretched, by factors from the ranges ``scale`` (of the inverse area
    if ``scale_is_area``) and ``aspect``. One of ``filters`` is chosen for each image.
    """

    height: int
    width: int
    longest: float
    filters: tuple[Filter, ...]
    scale_probability: float = 0.0
    scale: Range = (1.0, 1.0)
    scale_is_area: bool = False
    aspect_probability: float = 0.0
    aspect: Range = (1.0, 1.0)


@dataclass(frozen=True, slots=True)
class CenterCrop:
    """The middle ``height`` x ``width`` pixels; a smaller image is padded with zeros first."""

    height: int
    width: int


@dataclass(frozen=True, slots=True)
class CropOrPad:
    """``height`` x ``width`` pixels: a window, or all of a smaller image and a border of ``mode``.

    In the middle, or anywhere if ``random``.
    """

    height: int
    width: int
    random: bool
    mode: PadMode
    fill: Color


@dataclass(frozen=True, slots=True)
class TrimBorder:
    """All but ``border`` pixels on every side."""

    border: int


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """A random ``height`` x ``width`` window, after padding with the constant ``fill``.

    ``padding`` is (left, top, right, bottom) in pixels; ``fill`` one value per RGB channel.
    """

    height: int
    width: int
    padding: tuple[int, int, int, int]
    pad_if_needed: bool
    fill: Color


@dataclass(frozen=True, slots=True)
class RandomHorizontalFlip:
    """Mirrors left and right with ``probability``."""

    probability: float


@dataclass(frozen=True, slots=True)
class RandomVerticalFlip:
    """Mirrors top and bottom with ``probability``."""

    probability: float


@dataclass(frozen=True, slots=True)
class ColorJitter:
    """Brightness, contrast, saturation and hue by random factors, in random order.

    Each is a range that the factor is drawn from, or ``None`` where it is left alone.
    """

    brightness: Range | None
    contrast: Range | None
    saturation: Range | None
    hue: Range | None


@dataclass(frozen=True, slots=True)
class GaussianBlur:
    """A blur of random strength: kernel sizes are odd, ``sigma`` a range, all in pixels."""

    kernel_width: int
    kernel_height: int
    sigma: Range


@dataclass(frozen=True, slots=True)
class RandomRotation:
    """A rotation by a random angle, in degrees; the result holds all of the image if ``expand``."""

    degrees: Range
    interpolation: Interpolation
    expand: bool
    centre: tuple[float, float] | None
    fill: Color


@dataclass(frozen=True, slots=True)
class RandomAffine:
    """Rotation, translation, scaling and shear in one.

    ``translate`` is the largest part of width and height; ``degrees`` and shears are in degrees.
    """

    degrees: Range
    translate: tuple[float, float] | None
    scale: Range | None
    shear_x: Range | None
    shear_y: Range | None
    interpolation: Interpolation
    centre: tuple[float, float] | None
    fill: Color


@dataclass(frozen=True, slots=True)
class RandomPerspective:
    """The corners move inwards by at most ``distortion`` of half the image."""

    distortion: float
    interpolation: Interpolation
    fill: Color


@dataclass(frozen=True, slots=True)
class Fixed:
    """An operation without random parameters, as it is drawn: ``("invert",)``."""

    operation: Operation


@dataclass(frozen=True, slots=True)
class RandomErasing:
    """Rectangles of the converted result filled with values or noise.

    ``values`` are the elements of one pixel in machine byte order; empty for normally distributed
    noise, drawn for every element (``noise_per_pixel``) or once per channel. ``least_boxes`` to
    ``most_boxes`` rectangles. Zhong et al., "Random Erasing Data Augmentation" (2020).
    """

    probability: float
    scale: Range
    ratio: Range
    values: bytes
    noise_per_pixel: bool = True
    least_boxes: int = 1
    most_boxes: int = 1


@dataclass(frozen=True, slots=True)
class RandomApply:
    """All of ``stages`` with ``probability``, or none."""

    probability: float
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class RandomChoice:
    """One of ``branches``, by ``weights``."""

    branches: tuple[tuple[Stage, ...], ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RandomOrder:
    """All of ``branches``, in random order."""

    branches: tuple[tuple[Stage, ...], ...]


Container = RandomApply | RandomChoice | RandomOrder
Stage = (
    RandomResizedCrop
    | ResizeShorterSide
    | Resize
    | ResizeKeepRatio
    | CenterCrop
    | CropOrPad
    | TrimBorder
    | RandomCrop
    | RandomHorizontalFlip
    | RandomVerticalFlip
    | ColorJitter
    | GaussianBlur
    | RandomRotation
    | RandomAffine
    | RandomPerspective
    | Fixed
    | RandomPolicy
    | AugMix
    | RandomErasing
    | Container
)


def branches_of(stage: Stage) -> tuple[tuple[Stage, ...], ...]:
    """Returns the lists of stages that a container holds, none for any other stage."""
    if isinstance(stage, RandomApply):
        return (stage.stages,)
    return stage.branches if isinstance(stage, RandomChoice | RandomOrder) else ()


@dataclass(frozen=True, slots=True)
class Convert:
    """The last native stage: every 8-bit level of every channel mapped through a table.

    ``table`` holds ``channels * 256`` elements of ``element_type`` in machine byte order, channel
    by channel. It is made by running the user's own conversion transforms on the 256 levels, so it
    is right by construction, whatever their arithmetic. The result is channels x height x width.
    """

    element_type: ElementType
    table: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ImageKind:
    """What is known of all images before the first stage.

    ``channels`` is 3 (RGB) or 1 (grey); ``height`` and ``width`` in pixels, ``None`` where images
    differ.
    """

    channels: Channels = 3
    height: int | None = None
    width: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done to an image natively: decode to RGB where encoded, ``stages``, ``convert``.

    ``convert`` is ``None`` when Python code follows: the native part then ends with 8-bit pixels,
    height x width x channels. ``height`` and ``width`` are those of the result, ``None`` when they
    differ from image to image. ``decode`` is ``"exact"`` (Pillow's pixels) or ``"fast"``.
    ``channels`` are those of the images, ``result_channels`` those of the result, which is grey (1)
    also where three channels were made one. If not ``strict``, a file may be damaged behind the
    rows that its crop needs.
    """

    stages: tuple[Stage, ...]
    convert: Convert | None
    height: int | None
    width: int | None
    decode: Decode = "exact"
    channels: Channels = 3
    result_channels: Channels = 3
    strict: bool = True
