"""Images of one color that another image is pasted on, as letterboxes are made."""

from __future__ import annotations

import weakref
from typing import Any

from PIL import Image, ImageColor, ImageOps

from fusionloader.data.deferred import activity
from fusionloader.data.deferred.core import Blank, deferred_core
from fusionloader.data.deferred.guard import PLAIN, call_library
from fusionloader.data.deferred.methods import MOST_SIDE, parse_color
from fusionloader.data.deferred.pillow import Argument, PillowImage
from fusionloader.data.deferred.unparsed import is_transparent

_MODES = ("RGB", "L")
_MOST_PIXELS = 1 << 26  # Pillow may have no memory for more


def new(mode: Argument, size: Argument, color: Argument = 0) -> Any:
    """Replaces ``Image.new``: an image of one color gets its pixels when they are asked for."""
    if mode not in _MODES or not activity.is_active() or type(size) not in (tuple, list):
        return PLAIN
    if type(color) is str:
        color = call_library(ImageColor.getcolor, color, mode)
    levels = parse_color(0 if color is None else color, mode)
    plain = len(size) == 2 and all(type(side) is int and 1 <= side <= MOST_SIDE for side in size)
    if levels is None or not plain or size[0] * size[1] > _MOST_PIXELS:
        return PLAIN
    image: PillowImage = Image.Image()
    image._im = Blank(mode, tuple(size), levels)
    image._mode, image._size = mode, tuple(size)
    noted = activity.fetched_images()
    if noted is not None:
        noted.append(weakref.ref(image))
    return image


def new_like(image: Argument, size: Argument, fill: Argument) -> Any:
    """Replaces ``ImageOps._new_with_fill``, which asks for the image's ``info``."""
    if deferred_core(image) is None or is_transparent(image):
        return PLAIN
    return Image.new(image.mode, size, call_library(ImageOps._color, fill, image.mode))


def paste(self: PillowImage, im: Argument, box: Argument = None, mask: Argument = None) -> Any:
    """Replaces ``Image.paste``: a blank image becomes what is pasted, with a border around it."""
    blank = self._im
    if type(blank) is not Blank or mask is not None or not isinstance(im, Image.Image):
        return PLAIN
    box = (0, 0) if box is None else box
    if type(box) is not tuple or len(box) not in (2, 4):
        return PLAIN
    if not all(type(place) is int and abs(place) <= MOST_SIDE for place in box):
        return PLAIN
    core = deferred_core(im)
    if core is None or (core.mode != blank.mode and is_transparent(im)):
        return PLAIN
    left, upper = box[:2]
    if len(box) == 4 and (box[2] - left, box[3] - upper) != core.size:
        return PLAIN
    core = core.as_mode(blank.mode)
    if (left, upper) != (0, 0) or core.size != blank.size:
        window = ("crop", -left, -upper, *blank.size, blank.color)
        core = core.then(window, blank.size)
    if self._im is not blank:  # another thread was faster
        return PLAIN
    self._im = core
    core.source.track(self)
    return None
