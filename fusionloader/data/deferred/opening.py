"""Which image files are deferred when Pillow would decode them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PIL import ImageFile, JpegImagePlugin, PngImagePlugin

from fusionloader._native import is_never_refused
from fusionloader.data.deferred import activity, kept
from fusionloader.data.deferred.core import Access, DeferredCore, defer
from fusionloader.data.deferred.counts import counts
from fusionloader.data.deferred.decoding import NOT_NATIVE, defer_png
from fusionloader.data.deferred.guard import PLAIN
from fusionloader.data.deferred.pillow import PillowImage
from fusionloader.data.deferred.source import EncodedSource, read_known
from fusionloader.transforms.executors.native import file_decoder

_END_OF_IMAGE = b"\xff\xd9"
_SEARCHED = 4096  # bytes at a file's end; some cameras write behind the image


def load_file(self: PillowImage) -> Any:
    """``ImageFile.load``, which defers files of the formats that it knows."""
    deferring = _FORMATS.get(type(self))
    if deferring is None or not self.tile or self._im is not None or not activity.is_active():
        return PLAIN
    reason = deferring(self)
    if reason:
        counts().left[reason] += 1
        return PLAIN
    return Access(self)


def load(self: PillowImage) -> Any:
    """``Image.load``, which gives access to pixels that are made when asked for."""
    return Access(self) if type(self._im) is DeferredCore else PLAIN


def _defer_jpeg(image: PillowImage) -> str:
    """Takes the pixels of an open file from its bytes, later; returns why not, or nothing."""
    if image.mode not in ("RGB", "L"):
        return f"of mode {image.mode}"
    whole = (0, 0, *image.size)
    tiles = [tuple(tile) for tile in image.tile]
    if tiles != [("jpeg", whole, 0, (image.mode, ""))] or image.decoderconfig:
        return "decoded at a draft's size"
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        return "LOAD_TRUNCATED_IMAGES is set"
    file = kept.file_of(image.fp)
    pixels = None if file is None else file.pixels()
    if pixels is not None and pixels.shape[1::-1] == image.size:
        defer(image, EncodedSource(b"", image.size, pixels, file))
        return ""
    try:
        encoded = read_known(image.fp, file)
    except Exception:  # closed, for one, or the user's own kind of file
        return "the file cannot be read"
    if encoded.rfind(_END_OF_IMAGE, -_SEARCHED) < 0:
        return "cut off"
    if file_decoder().image_size(encoded) != image.size:
        return NOT_NATIVE
    source = EncodedSource(encoded, image.size, file=file and file.if_whole(encoded))
    # What libjpeg may refuse is decoded now: Pillow would raise here.
    if not is_never_refused(encoded) and not source.decode_natively():
        return NOT_NATIVE
    defer(image, source)
    return ""


_FORMATS: dict[type, Callable[[PillowImage], str]] = {
    JpegImagePlugin.JpegImageFile: _defer_jpeg,
    PngImagePlugin.PngImageFile: defer_png,
}
