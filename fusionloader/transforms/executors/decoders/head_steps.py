"""What the head does to one sample: the drawn operations that begin a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusionloader.transforms.plan.stages import Operation

# Those that ``DecodeCommand.filter`` promises a decoder of the user's.
FILTERS = ("bilinear", "bicubic", "lanczos")


class HeadCannot(ValueError):
    """The head cannot do an operation; the message says what and why."""


@dataclass(frozen=True, slots=True)
class HeadStep:
    """A window of the image, decoded, resized with ``filter`` to ``height`` x ``width``, mirrored.

    ``window`` is (x, y, width, height) in pixels of the file.
    """

    window: tuple[int, int, int, int]
    height: int
    width: int
    filter: str = "bilinear"
    hflip: bool = False
    vflip: bool = False


def window_of(
    operations: Sequence[Operation], width: int, height: int
) -> tuple[HeadStep, list[Operation]]:
    """The window that a sample's operations begin with, and those that follow.

    The whole image where they begin with none, or with one beyond its border.
    """
    rest = list(operations)
    if rest and rest[0][0] == "crop":
        x, y, across, down, _ = rest[0][1:]
        if min(x, y) >= 0 and x + across <= width and y + down <= height:
            return HeadStep((x, y, across, down), down, across), rest[1:]
    return HeadStep((0, 0, width, height), height, width), rest


def head_of(
    operations: Sequence[Operation], width: int, height: int
) -> tuple[HeadStep, list[Operation]]:
    """The head's part of a sample's operations, and those that follow.

    ``width`` and ``height`` are those of the file's image, which the first operations find.

    Raises:
        HeadCannot: they begin with a window that is not within the image, or with another filter.
    """
    step, rest = window_of(operations, width, height)
    if len(rest) == len(operations) and rest and rest[0][0] == "crop":
        raise HeadCannot("crop beyond the border of an image")
    to_width, to_height, filter = step.width, step.height, FILTERS[0]
    if rest and rest[0][0] == "resize":
        to_width, to_height, filter = rest.pop(0)[1:]
        if filter not in FILTERS:
            raise HeadCannot(f"resize with the filter {filter!r}")
    flips = {"hflip": False, "vflip": False}
    while rest and rest[0][0] in flips:
        name = rest.pop(0)[0]
        flips[name] = not flips[name]
    return HeadStep(step.window, to_height, to_width, filter, **flips), rest
