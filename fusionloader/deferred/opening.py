"""Which image files are deferred when Pillow would decode them."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any

from PIL import ImageFile, JpegImagePlugin

from fusionloader._native import is_never_refused
from fusionloader.deferred import activity
from fusionloader.deferred.core import Access, DeferredCore
from fusionloader.deferred.counts import counts
from fusionloader.deferred.pillow import PillowImage
from fusionloader.deferred.source import Source
from fusionloader.executors.native import executor_of_size

_END_OF_IMAGE = b"\xff\xd9"
_NOT_NATIVE = "damaged, or of a kind that the native decoder does not know"
_SEARCHED = 4096  # bytes at a file's end; some cameras write behind the image


def loading(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns ``ImageFile.load``, which defers JPEG files."""

    @functools.wraps(original)
    def load(self: PillowImage) -> Any:
        if (
            type(self) is JpegImagePlugin.JpegImageFile
            and self.tile
            and self._im is None
            and activity.is_active()
        ):
            reason = _defer(self)
            if not reason:
                return Access(self)
            counts().left[reason] += 1
        return original(self)

    return load


def loaded(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns ``Image.load``, which gives access to pixels that are made when asked for."""

    @functools.wraps(original)
    def load(self: PillowImage) -> Any:
        return Access(self) if type(self._im) is DeferredCore else original(self)

    return load


def _defer(image: PillowImage) -> str:
    """Reads an open file's bytes and closes it as Pillow does; returns why not, or nothing."""
    if image.mode not in ("RGB", "L"):
        return f"of mode {image.mode}"
    whole = (0, 0, *image.size)
    tiles = [tuple(tile) for tile in image.tile]
    if tiles != [("jpeg", whole, 0, (image.mode, ""))] or image.decoderconfig:
        return "decoded at a draft's size"
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        return "LOAD_TRUNCATED_IMAGES is set"
    try:
        encoded = _read(image.fp)
    except Exception:  # closed, for one, or the user's own kind of file
        return "the file cannot be read"
    if encoded.rfind(_END_OF_IMAGE, -_SEARCHED) < 0:
        return "cut off"
    if executor_of_size(3, 0, 0).image_size(encoded) != image.size:
        return _NOT_NATIVE
    source = Source(encoded, image.size)
    # What libjpeg may refuse is decoded now: Pillow would raise here.
    if not is_never_refused(encoded) and not source.decode_natively():
        return _NOT_NATIVE
    image._im = DeferredCore(source, (), image.mode, image.size)
    image.tile, image.readonly, image.map = [], 0, None
    image.load_end()
    if image._exclusive_fp and image._close_exclusive_fp_after_loading:
        image.fp.close()
    image.fp = None
    counts().files += 1
    image._im.source.track(image)
    return ""


def _read(file: Any) -> bytes:
    if type(file) is io.BytesIO:
        file.seek(0, io.SEEK_END)
        return file.getvalue()
    file.seek(0)
    encoded = file.read()
    if not isinstance(encoded, bytes):
        raise ValueError("not a binary file")
    return encoded
