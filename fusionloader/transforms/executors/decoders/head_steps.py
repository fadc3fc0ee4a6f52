"""The head's part of a sample's operations: those that decode, cut, resize and mirror."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusionloader.transforms.plan.stages import Operation

# Filters of ``DecodeCommand.filter``.
FILTERS = ("bilinear", "bicubic", "lanczos")


class HeadCannot(ValueError):
    """The head cannot do an operation; the message says which."""


@dataclass(frozen=True, slots=True)
class HeadStep:
    """Decodes a window, resizes it with ``filter`` to ``height`` x ``width``, and mirrors it.

    ``window`` is (x, y, width, height) in pixels of the file.
    """

    window: tuple[int, int, int, int]
    height: int
    width: int
    filter: str = "bilinear"
    hflip: bool = False
    vflip: bool = False


def split_window(
    operations: Sequence[Operation], width: int, height: int
) -> tuple[HeadStep, list[Operation]]:
    """Splits a sample's operations into a window to decode and the rest.

    The window is the whole image if the first operation is no crop, or one beyond the border.
    ``width`` and ``height`` are those of the file's image.
    """
    rest = list(operations)
    if rest and rest[0][0] == "crop":
        x, y, across, down, _ = rest[0][1:]
        if min(x, y) >= 0 and x + across <= width and y + down <= height:
            return HeadStep((x, y, across, down), down, across), rest[1:]
    return HeadStep((0, 0, width, height), height, width), rest


def split_head(
    operations: Sequence[Operation], width: int, height: int
) -> tuple[HeadStep, list[Operation]]:
    """Splits a sample's operations into those done while decoding (the head) and the rest.

    The step has the leading crop, resize and flips. ``width`` and ``height`` are those of the
    file's image.

    Raises:
        HeadCannot: the crop is beyond the image's border, or the filter is not in ``FILTERS``.
    """
    step, rest = split_window(operations, width, height)
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
