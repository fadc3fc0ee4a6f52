"""What the head does to one sample: the drawn operations that begin a plan. No DALI here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusionloader.executors.dali.errors import NotOnDali
from fusionloader.plan.operations import Operation

# DALI's box and Hamming filters are others than Pillow's.
FILTERS = ("bilinear", "bicubic", "lanczos")


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


def head_of(
    operations: Sequence[Operation], width: int, height: int
) -> tuple[HeadStep, list[Operation]]:
    """The head's part of a sample's operations, and those that follow.

    ``width`` and ``height`` are those of the file's image, which the first operations find.

    Raises:
        NotOnDali: they begin with a window that is not within the image, or with another filter.
    """
    rest = list(operations)
    x, y, window_width, window_height = 0, 0, width, height
    if rest and rest[0][0] == "crop":
        x, y, window_width, window_height, _ = rest.pop(0)[1:]
        if min(x, y) < 0 or x + window_width > width or y + window_height > height:
            raise NotOnDali("crop beyond the border of an image")
    to_width, to_height, filter = window_width, window_height, FILTERS[0]
    if rest and rest[0][0] == "resize":
        to_width, to_height, filter = rest.pop(0)[1:]
        if filter not in FILTERS:
            raise NotOnDali(f"resize with the filter {filter!r}")
    flips = {"hflip": False, "vflip": False}
    while rest and rest[0][0] in flips:
        name = rest.pop(0)[0]
        flips[name] = not flips[name]
    window = (x, y, window_width, window_height)
    return HeadStep(window, to_height, to_width, filter, **flips), rest
