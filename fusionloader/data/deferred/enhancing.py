"""``ImageEnhance`` and ``ImageOps`` on deferred images."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from PIL import ImageEnhance

from fusionloader.data.deferred.core import DeferredCore, deferred_core, like, make_image
from fusionloader.data.deferred.guard import PLAIN, guarded
from fusionloader.data.deferred.methods import parse_color
from fusionloader.data.deferred.pillow import Argument, PillowImage
from fusionloader.data.deferred.unparsed import copy_info, is_transparent
from fusionloader.transforms.plan.stages import Operation

Function = Callable[..., Any]

# Operation, and whether the result has the image's ``info``. It has that of the degenerate image.
_ENHANCERS: dict[type, tuple[str, bool]] = {
    ImageEnhance.Brightness: ("brightness", False),
    ImageEnhance.Contrast: ("contrast", False),
    ImageEnhance.Color: ("saturation", True),
    ImageEnhance.Sharpness: ("sharpness", True),
}
ENHANCERS = tuple(_ENHANCERS)
_CORE, _INIT, _INFO = "_fusionloader_core", "_fusionloader_init", "_fusionloader_info"
_MOST_FACTOR = 1e6


def enhancer(original: Function) -> Function:
    """Returns an ``__init__`` of enhancers that makes no degenerate image of a deferred one."""

    def attempt(self: PillowImage, image: PillowImage) -> Any:
        core = deferred_core(image) if type(self) in _ENHANCERS else None
        if core is None or core.mode != "RGB" or is_transparent(image):
            return PLAIN
        self.image = image
        if type(self) is ImageEnhance.Color:
            self.intermediate_mode = "L"
        setattr(self, _CORE, core)
        setattr(self, _INFO, copy_info(image))
        setattr(self, _INIT, original)
        core.source.track(self)
        return None

    return guarded(attempt, original)


class Degenerate:
    """The attribute ``degenerate`` of an enhancer of a deferred image, made on first access."""

    def __get__(self, enhancer: PillowImage, kind: type) -> Any:
        """Returns the image that Pillow makes of the image that the enhancer was given."""
        if enhancer is None or _CORE not in enhancer.__dict__:
            raise AttributeError("degenerate")
        made = object.__new__(type(enhancer))
        snapshot = make_image(enhancer.__dict__[_CORE], enhancer.__dict__[_INFO])
        snapshot.im  # noqa: B018  makes the pixels, so that __init__ does not defer again
        enhancer.__dict__[_INIT](made, snapshot)
        enhancer.degenerate = made.degenerate
        return made.degenerate


def settle_enhancer(enhancer: PillowImage) -> None:
    """Makes an enhancer a plain one of Pillow's, which works without the replacements."""
    if "degenerate" not in enhancer.__dict__ and _CORE in enhancer.__dict__:
        enhancer.degenerate  # noqa: B018  makes the image
    for name in (_CORE, _INIT, _INFO):
        enhancer.__dict__.pop(name, None)


def get_enhancer_state(enhancer: PillowImage) -> dict[str, Any]:
    """Adds ``__getstate__``: an enhancer is pickled and copied as a plain one of Pillow's."""
    settle_enhancer(enhancer)
    return dict(enhancer.__dict__)


def enhance(self: PillowImage, factor: Argument) -> Any:
    core = self.__dict__.get(_CORE)
    known = core is not None and getattr(self.image, "_im", None) is core
    known = known and "degenerate" not in self.__dict__
    if not known or not isinstance(factor, (int, float)) or not 0 <= factor <= _MOST_FACTOR:
        return PLAIN
    name, keeps_info = _ENHANCERS[type(self)]
    info = copy.copy(self.__dict__[_INFO]) if keeps_info else None
    return make_image(core.then((name, float(factor))), info)


_MOST_BORDER = 1 << 14
Recorder = Callable[..., "Operation | None"]


def recording(recorder: Recorder) -> Function:
    """Returns an attempt to record a function of ``ImageOps``; the result has the image's info."""

    def attempt(image: PillowImage, *arguments: Argument, **named: Argument) -> Any:
        core = deferred_core(image)
        if core is None or core.mode != "RGB":
            return PLAIN
        operation = recorder(*arguments, **named)
        return PLAIN if operation is None else like(image, core.then(operation))

    return attempt


def posterize(bits: Argument) -> Operation | None:
    return ("posterize", bits) if type(bits) is int and 1 <= bits <= 8 else None


def solarize(threshold: Argument = 128) -> Operation | None:
    plain = isinstance(threshold, (int, float)) and 0 <= threshold <= 256
    return ("solarize", float(threshold)) if plain else None


def without_arguments(name: str) -> Recorder:
    """Returns the recorder of a function of ``ImageOps`` that takes only the image."""

    def record(*arguments: Argument, **named: Argument) -> Operation | None:
        return None if arguments or named else (name,)

    return record


def expand(image: PillowImage, border: Argument = 0, fill: Argument = 0) -> Any:
    """Records ``ImageOps.expand`` with a border of one color."""
    core = deferred_core(image)
    known = type(border) is int or (type(border) is tuple and len(border) in (2, 4))
    after = None
    if core is not None and known:
        after = padded(core, border, parse_color(fill, core.mode))
    return PLAIN if after is None else make_image(after)


def padded(core: DeferredCore, border: Argument, fill: Argument, mode: str = "constant") -> Any:
    """Returns the core with a border around it; ``None`` if that cannot be recorded.

    Args:
        core: of the image.
        border: width of the border in pixels, or a tuple of 1, 2 or 4 widths: all sides; left and
            right, top and bottom; left, top, right, bottom.
        fill: color of the border for ``mode="constant"``.
        mode: padding mode of torchvision.
    """
    widths = border if isinstance(border, (tuple, list)) else (border,)
    if fill is None or len(widths) not in (1, 2, 4):
        return None
    if not all(type(width) is int and 0 <= width <= _MOST_BORDER for width in widths):
        return None
    left, top, right, bottom = (tuple(widths) * 4)[:4]
    width, height = core.size
    # A border wider than the image is left to numpy.
    if mode != "constant" and (max(left, right) >= width or max(top, bottom) >= height):
        return None
    size = left + width + right, top + height + bottom
    if size == core.size and mode == "constant":
        return core
    return core.then(("pad", left, top, right, bottom, mode, fill), size)
