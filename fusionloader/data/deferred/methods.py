"""The recorded methods of Pillow's images: ``convert``, ``crop``, ``resize``, turns, warps."""

from __future__ import annotations

import enum
import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image, ImageFile, ImageFilter

from fusionloader.data.deferred.core import (
    BLACK,
    Blank,
    DeferredCore,
    deferred_core,
    find_core,
    like,
    settle,
)
from fusionloader.data.deferred.counts import counts
from fusionloader.data.deferred.guard import PLAIN, call_library, guarded
from fusionloader.data.deferred.pillow import Argument, PillowImage
from fusionloader.data.deferred.unparsed import is_transparent
from fusionloader.transforms.plan.stages import Operation

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
_LEVELS, _MOST_LEVEL = 256, 1 << 30
_MOST_REDUCED = 1 << 16  # pixels to one, as in csrc/plan/passes.cpp
_HFLIP, _VFLIP = ("hflip",), ("vflip",)
_LEFT, _RIGHT = (("rotate", angle, "nearest", True, None, BLACK) for angle in (90.0, 270.0))
_TURNS: dict[Any, tuple[Operation, ...]] = {
    Image.Transpose.FLIP_LEFT_RIGHT: (_HFLIP,),
    Image.Transpose.FLIP_TOP_BOTTOM: (_VFLIP,),
    Image.Transpose.ROTATE_180: (_HFLIP, _VFLIP),
    Image.Transpose.ROTATE_90: (_LEFT,),
    Image.Transpose.ROTATE_270: (_RIGHT,),
    Image.Transpose.TRANSPOSE: (_LEFT, _VFLIP),
    Image.Transpose.TRANSVERSE: (_LEFT, _HFLIP),
}
_WARPS = {Image.Transform.AFFINE: ("affine", 6), Image.Transform.PERSPECTIVE: ("perspective", 8)}


def recording(recorder: Recorder) -> Method:
    """Returns an attempt to record a method of Pillow's images."""
    core_for = find_core if recorder in (copy, convert) else deferred_core

    def attempt(self: PillowImage, *arguments: Argument, **named: Argument) -> Any:
        # Pillow looks at these arguments before it loads a file.
        if recorder is resize and not _may_resize(*arguments, **named):
            return PLAIN
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
        if type(self._im) in (DeferredCore, Blank):
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
    """Records ``Image.resize`` with arguments that ``_may_resize`` allows."""
    width, height = size
    resample = Image.Resampling.BICUBIC if resample is None else resample
    name = FILTERS[resample]
    whole = 0, 0, *core.size
    box = whole if box is None else box
    if box == whole and (width, height) == core.size:
        return core
    if not (1 <= width <= MOST_SIDE and 1 <= height <= MOST_SIDE):
        return None
    if single_precision(box, core.size) is None:
        return None
    reduced: DeferredCore | None = core
    if reducing_gap is not None:
        factors = [
            int((box[side + 2] - box[side]) / (width, height)[side] / reducing_gap) or 1
            for side in (0, 1)
        ]
        if factors != [1, 1]:
            sized: PillowImage = core  # like Pillow's image, it has a size
            safe: Any = Image.Image._get_safe_box(sized, (width, height), resample, box)
            reduced = reduce(core, tuple(factors), safe)
            box = tuple(
                (place - begin) / factor
                for place, begin, factor in zip(box, safe[:2] * 2, factors * 2, strict=True)
            )
    return None if reduced is None else _resize_box(reduced, (width, height), name, box)


def _may_resize(
    size: Argument, resample: Argument = None, box: Argument = None, reducing_gap: Argument = None
) -> bool:
    """Whether a resize to any but the nearest pixels is possible as far as is known of it."""
    if not _is_choice(resample) or not (resample is None or resample in FILTERS):
        return False
    if type(size) not in (tuple, list) or len(size) != 2:
        return False
    if reducing_gap is not None and not (type(reducing_gap) in (int, float) and reducing_gap >= 1):
        return False
    return type(size[0]) is type(size[1]) is int


def _resize_box(
    core: DeferredCore, size: tuple[int, int], name: str, box: Argument
) -> DeferredCore | None:
    part = single_precision(box, core.size)
    if part is None:
        return None
    left, upper, right, lower = part
    if left % 1 == upper % 1 == 0 and (right - left, lower - upper) == size:
        return crop(core, (int(left), int(upper), int(right), int(lower)))
    boxed = () if part == (0, 0, *core.size) else (part,)
    return core.then(("resize", *size, name, *boxed), size)


def single_precision(box: Argument, size: tuple[int, int]) -> tuple[float, ...] | None:
    """Returns a box as Pillow's native code gets it.

    ``None`` if it is not inside an image of that size, or is less than a pixel wide or high.
    """
    if type(box) is not tuple or len(box) != 4:
        return None
    if not all(isinstance(place, (int, float)) and abs(place) <= 2 * MOST_SIDE for place in box):
        return None
    single = struct.unpack("4f", struct.pack("4f", *box))
    left, upper, right, lower = single
    inside = left >= 0 and upper >= 0 and right <= size[0] and lower <= size[1]
    return single if inside and right - left >= 1 and lower - upper >= 1 else None


def reduce(core: DeferredCore, factor: Argument, box: Argument = None) -> DeferredCore | None:
    """Records ``Image.reduce``."""
    columns, rows = factor if type(factor) is tuple and len(factor) == 2 else (factor, factor)
    if not (type(columns) is type(rows) is int and columns >= 1 and rows >= 1):
        return None
    if columns * rows > _MOST_REDUCED:
        return None
    whole = 0, 0, *core.size
    box = whole if box is None else box
    if type(box) is not tuple or len(box) != 4 or not all(type(place) is int for place in box):
        return None
    left, upper, right, lower = box
    if not (0 <= left < right <= core.size[0] and 0 <= upper < lower <= core.size[1]):
        return None
    cropped = crop(core, box)
    if cropped is None or columns == rows == 1:
        return cropped
    size = -(-cropped.size[0] // columns), -(-cropped.size[1] // rows)
    return cropped.then(("reduce", columns, rows), size)


def transpose(core: DeferredCore, method: Argument) -> DeferredCore | None:
    """Records ``Image.transpose``."""
    turns = _TURNS.get(method) if _is_choice(method) else None
    if turns is None:
        return None
    size = core.size[::-1] if turns[0][0] == "rotate" else core.size
    return core.after(turns, size)


def getchannel(core: DeferredCore, channel: Argument) -> DeferredCore | None:
    """Records ``Image.getchannel``."""
    names = tuple(core.mode)
    number = names.index(channel) if channel in names else channel
    if type(number) is not int or not 0 <= number < len(names):
        return None
    return core if core.mode == "L" else core.then(("channels", *[number] * 3), mode="L")


def split(self: PillowImage) -> Any:
    """Replaces ``Image.split``."""
    core = deferred_core(self)
    if core is None or is_transparent(self):
        return PLAIN
    return tuple(like(self, getchannel(core, name) or core) for name in core.mode)


def merge(mode: Argument, bands: Argument) -> Any:
    """Replaces ``Image.merge``: channels of one image, in any order, or one gray image thrice."""
    if mode != "RGB" or type(bands) not in (tuple, list) or len(bands) != 3:
        return PLAIN
    cores: list[Any] = [getattr(band, "_im", None) for band in bands]
    if not all(type(core) is DeferredCore and core.mode == "L" for core in cores):
        return PLAIN
    first: DeferredCore = cores[0]
    if is_transparent(bands[0]) or any(core.source is not first.source for core in cores):
        return PLAIN
    if all(core.operations == first.operations for core in cores):
        return like(bands[0], first.as_mode("RGB"))
    ends = [core.operations[-1:] for core in cores]
    before = first.operations[:-1]
    if not all(end and end[0][0] == "channels" for end in ends):
        return PLAIN
    if any(core.operations[:-1] != before for core in cores):
        return PLAIN
    whole = DeferredCore(first.source, before, "RGB", first.size)
    channels = tuple(end[0][1] for end in ends)
    return like(bands[0], whole if channels == (0, 1, 2) else whole.then(("channels", *channels)))


def pointing(original: Method) -> Method:
    """Returns an ``Image.point`` that records lookup tables, also those that a function gives."""

    def attempt(self: PillowImage, lut: Argument, mode: Argument = None) -> Any:
        core = deferred_core(self)
        if core is None or is_transparent(self) or mode is not None:
            return PLAIN
        if isinstance(lut, Image.ImagePointHandler):
            return PLAIN
        given = callable(lut)
        if given:
            lut = [call_library(lut, level) for level in range(_LEVELS)] * len(core.mode)
        tables = _read_tables(lut)
        if tables is not None and len(tables) == _LEVELS * len(core.mode):
            same = tables == tables[:_LEVELS] * len(core.mode)
            return like(self, core.then(("lookup", tables[:_LEVELS] if same else tables)))
        # The function is not called again.
        return call_library(original, self, lut) if given else PLAIN

    return guarded(attempt, original)


def _read_tables(lut: Argument) -> bytes | None:
    """Returns the levels of lookup tables, rounded and cut off as Pillow does it."""
    if type(lut) not in (list, tuple):
        return None
    try:
        return bytes(lut)
    except (TypeError, ValueError):  # not all are integers from 0 to 255
        pass
    if not all(isinstance(level, (int, float)) and abs(level) <= _MOST_LEVEL for level in lut):
        return None
    return bytes(min(max(round(level), 0), _LEVELS - 1) for level in lut)


class _InPlace:
    """A deferred image as Pillow's ``thumbnail`` sees it; what is set of it stays deferred."""

    def __init__(self, image: PillowImage) -> None:
        object.__setattr__(self, "_image", image)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._image, "_im" if name == "im" else name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._image, "_im" if name == "im" else name, value)

    def resize(self, *arguments: Argument, **named: Argument) -> _InPlace:
        return _InPlace(self._image.resize(*arguments, **named))


def making_thumbnails(original: Method) -> Method:
    """Returns an ``Image.thumbnail`` that leaves a deferred image deferred."""

    def attempt(self: PillowImage, *arguments: Argument, **named: Argument) -> Any:
        # Pillow may decode an open file at a smaller scale.
        is_open = isinstance(self, ImageFile.ImageFile) and self._im is None
        if type(self._im) is not DeferredCore and not is_open:
            return PLAIN
        return call_library(functools.partial(original, _InPlace(self), *arguments, **named))

    return guarded(attempt, original)


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
