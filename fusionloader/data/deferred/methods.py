"""The recorded methods of Pillow's images: ``convert``, ``crop``, ``resize``, flips, warps."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image, ImageFilter

from fusionloader.data.deferred.core import (
    BLACK,
    DeferredCore,
    deferred_core,
    find_core,
    like,
    settle,
)
from fusionloader.data.deferred.counts import counts
from fusionloader.data.deferred.guard import PLAIN
from fusionloader.data.deferred.pillow import Argument, PillowImage
from fusionloader.data.deferred.unparsed import is_transparent

Method = Callable[..., Any]
# Returns the core after a call of the method, or None if the call needs pixels.
Recorder = Callable[..., "DeferredCore | None"]

FILTERS = {
    Image.Resampling.BOX: "box",
    Image.Resampling.BILINEAR: "bilinear",
    Image.Resampling.HAMMING: "hamming",
    Image.Resampling.BICUBIC: "bicubic",
    Image.Resampling.LANCZOS: "lanczos",
}
INTERPOLATIONS = {
    Image.Resampling.NEAREST: "nearest",
    Image.Resampling.BILINEAR: "bilinear",
    Image.Resampling.BICUBIC: "bicubic",
}
# Larger images are left to Pillow, which has its own errors for them.
MOST_SIDE, _MOST_RADIUS = 1 << 16, 1000
_FLIPS = {
    Image.Transpose.FLIP_LEFT_RIGHT: ("hflip",),
    Image.Transpose.FLIP_TOP_BOTTOM: ("vflip",),
    Image.Transpose.ROTATE_180: ("hflip", "vflip"),
}
_WARPS = {Image.Transform.AFFINE: ("affine", 6), Image.Transform.PERSPECTIVE: ("perspective", 8)}


def recording(recorder: Recorder) -> Method:
    """Returns an attempt to record a method of Pillow's images."""
    core_for = find_core if recorder in (copy, convert) else deferred_core

    def attempt(self: PillowImage, *arguments: Argument, **named: Argument) -> Any:
        core = core_for(self)
        # Pillow converts the transparent color together with the image.
        if core is None or is_transparent(self):
            return PLAIN
        after = recorder(core, *arguments, **named)
        return PLAIN if after is None else like(self, after)

    return attempt


def core_property(original: property) -> property:
    """Returns an ``Image.im`` that gives a deferred image its pixels first."""
    get = original.fget
    assert get is not None

    @functools.wraps(get)
    def im(self: PillowImage) -> Any:
        if type(self._im) is DeferredCore:
            settle(self)
        return get(self)

    return property(im, original.fset, original.fdel, original.__doc__)


def array_interface(self: PillowImage) -> Any:
    """Replaces ``Image.__array_interface__``: decodes for numpy, and the image stays deferred."""
    core = deferred_core(self)
    if core is None:
        return PLAIN
    pixels = core.pixels()
    counts().results["array"] += 1
    data = pixels.reshape(-1).data.toreadonly()
    return {"version": 3, "data": data, "shape": pixels.shape, "typestr": "|u1"}


def tobytes(self: PillowImage, encoder_name: Argument = "raw", *arguments: Argument) -> Any:
    """Replaces ``Image.tobytes``: decodes, and the image stays deferred."""
    core = deferred_core(self)
    if core is None or encoder_name != "raw" or arguments not in ((), (core.mode,)):
        return PLAIN
    pixels = core.pixels().tobytes()
    counts().results["array"] += 1
    return pixels


def copy(core: DeferredCore) -> DeferredCore:
    return core


def convert(
    core: DeferredCore,
    mode: str | None = None,
    matrix: Argument = None,
    dither: Argument = None,
    palette: Argument = None,
    colors: Argument = None,
) -> DeferredCore | None:
    """Records ``Image.convert`` to RGB and to L."""
    if matrix:
        return None
    mode = mode or core.mode
    return core.as_mode(mode) if mode in ("RGB", "L") else None


def crop(core: DeferredCore, box: Argument = None) -> DeferredCore | None:
    """Records ``Image.crop``; pixels outside the image are black."""
    if box is None:
        return core
    if type(box) not in (tuple, list):
        return None
    left, upper, right, lower = map(int, map(round, box))
    if max(map(abs, (left, upper, right, lower))) > MOST_SIDE:
        return None
    if box[2] < box[0] or box[3] < box[1] or left >= right or upper >= lower:
        return None
    size = right - left, lower - upper
    if Image.MAX_IMAGE_PIXELS is not None and size[0] * size[1] > Image.MAX_IMAGE_PIXELS:
        return None
    if (left, upper, right, lower) == (0, 0, *core.size):
        return core
    return core.then(("crop", left, upper, *size, BLACK), size)


def resize(
    core: DeferredCore,
    size: Argument,
    resample: Argument = None,
    box: Argument = None,
    reducing_gap: Argument = None,
) -> DeferredCore | None:
    """Records ``Image.resize`` of the whole image."""
    if type(size) not in (tuple, list) or not _is_choice(resample):
        return None
    width, height = size
    name = FILTERS.get(Image.Resampling.BICUBIC if resample is None else resample)
    if name is None or reducing_gap is not None or not (type(width) is type(height) is int):
        return None
    if box is not None and tuple(box) != (0, 0, *core.size):
        return None
    if (width, height) == core.size:
        return core
    if not (1 <= width <= MOST_SIDE and 1 <= height <= MOST_SIDE):
        return None
    return core.then(("resize", width, height, name), (width, height))


def transpose(core: DeferredCore, method: Argument) -> DeferredCore | None:
    """Records ``Image.transpose``: flips and the rotation by 180 degrees."""
    names = _FLIPS.get(method) if _is_choice(method) else None
    if names is None:
        return None
    for name in names:
        core = core.then((name,))
    return core


def transform(
    core: DeferredCore,
    size: Argument,
    method: Argument,
    data: Sequence[float] | None = None,
    resample: Argument = Image.Resampling.NEAREST,
    fill: int = 1,
    fillcolor: Argument = None,
) -> DeferredCore | None:
    """Records ``Image.transform``: affine and perspective warps that keep the size."""
    if not (_is_choice(method) and _is_choice(resample) and type(size) in (tuple, list)):
        return None
    if type(data) not in (tuple, list):
        return None
    name, count = _WARPS.get(method, ("", 0))
    color = parse_color(0 if fillcolor is None else fillcolor, core.mode)
    if not name or data is None or len(data) != count or tuple(size) != core.size:
        return None
    if color is None or resample not in INTERPOLATIONS or fill != 1:
        return None
    return core.then((name, tuple(map(float, data)), INTERPOLATIONS[resample], color))


def filter(core: DeferredCore, filter: Argument) -> DeferredCore | None:
    """Records ``Image.filter`` with ``GaussianBlur``."""
    if type(filter) is not ImageFilter.GaussianBlur:
        return None
    radius: Argument = filter.radius
    if type(radius) not in (int, float) or not 0 < radius <= _MOST_RADIUS:
        return None
    return core.then(("box_blur", float(radius)))


def _is_choice(value: Argument) -> bool:
    """Whether a value may name one of Pillow's choices; a float that equals one does not."""
    return value is None or type(value) is int or isinstance(value, enum.IntEnum)


def parse_color(fill: Argument, mode: str) -> tuple[int, int, int] | None:
    """Returns the three levels of a color; ``None`` for other forms, which Pillow handles."""
    if type(fill) is int and (fill == 0 or mode == "L") and 0 <= fill <= 255:
        return fill, fill, fill
    if type(fill) is not tuple or mode != "RGB" or len(fill) != 3:
        return None
    red, green, blue = fill
    plain = all(type(level) is int and 0 <= level <= 255 for level in fill)
    return (red, green, blue) if plain else None
