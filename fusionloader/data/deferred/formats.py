"""Image files that Pillow opens and FusionLoader decodes: JPEG, PNG and WebP.

The pixels of a JPEG are deferred whole. Of a PNG or WebP file it is known only at its end whether
it is damaged, in which case Pillow raises from ``load()``. These files are therefore decoded in
``load()``, to RGBX or RGBA pixels, and only the operations that follow are deferred.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import ImageFile, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from fusionloader._native import RunStatus, is_never_refused
from fusionloader.data.deferred import activity, file_cache
from fusionloader.data.deferred.core import Access, DeferredCore, defer, defer_unparsed
from fusionloader.data.deferred.counts import counted_read, counts, timed_decoding
from fusionloader.data.deferred.file_cache import KnownFile
from fusionloader.data.deferred.guard import PLAIN, call_library, comes_from_elsewhere, guarded
from fusionloader.data.deferred.pillow import PillowImage
from fusionloader.data.deferred.source import EncodedSource, is_too_large, read_known
from fusionloader.data.deferred.unparsed import UNPARSED
from fusionloader.transforms.executors.native import file_decoder

NOT_NATIVE = "damaged, or of a kind that the native decoder does not know"
_ANIMATED = "animated"
_TRUNCATED_ALLOWED = "LOAD_TRUNCATED_IMAGES is set"
_UNREADABLE = "the file cannot be read"
_ENCODED = "_fusionloader_encoded"
_END_OF_IMAGE = b"\xff\xd9"
_SEARCHED = 4096  # bytes at the end of a file; some cameras write data behind the image


def load_file(self: PillowImage) -> Any:
    """Replaces ``ImageFile.load``: defers the pixels of the formats in ``_FORMATS``."""
    if UNPARSED in self.__dict__ and self._im is None and defer_unparsed(self):
        return Access(self)
    deferring = _FORMATS.get(type(self))
    if deferring is None or not self.tile or self._im is not None or not activity.is_active():
        return PLAIN
    reason = deferring(self)
    if reason:
        counts().left[reason] += 1
        return PLAIN
    return Access(self)


def load(self: PillowImage) -> Any:
    """Replaces ``Image.load``: returns pixel access that makes the pixels on first use."""
    # Pillow's method gives the pixels the palette of ``putpalette``.
    return Access(self) if type(self._im) is DeferredCore and self.palette is None else PLAIN


def _defer_jpeg(image: PillowImage) -> str:
    """Defers the pixels of an open file; returns the reason if it cannot, else ``""``."""
    if image.mode not in ("RGB", "L"):
        return f"of mode {image.mode}"
    whole = (0, 0, *image.size)
    tiles = [tuple(tile) for tile in image.tile]
    # A draft of the whole size is decoded as any image, but one in gray as its luma.
    drafted = image.decoderconfig not in ((), (1, 0)) or image.layers != len(image.getbands())
    if tiles != [("jpeg", whole, 0, (image.mode, ""))] or drafted:
        return "decoded at a draft's size"
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        return _TRUNCATED_ALLOWED
    file = file_cache.find_file(image.fp)
    pixels = None if file is None else file.pixels()
    if file is not None:
        image.fp.seek(0, io.SEEK_END)  # where Pillow leaves it; what is cached is not read
    if pixels is not None and pixels.shape[1::-1] == image.size:
        defer(image, EncodedSource(b"", image.size, pixels, file))
        return ""
    try:
        encoded = read_known(image.fp, file)
    except Exception as error:  # a closed file, or a file object of the user's own class
        if comes_from_elsewhere(error):  # a signal handler's
            raise
        return _UNREADABLE
    if encoded.rfind(_END_OF_IMAGE, -_SEARCHED) < 0:
        return "cut off"
    if file_decoder().image_size(encoded) != image.size:
        return NOT_NATIVE
    source = EncodedSource(encoded, image.size, file=file and file.if_whole(encoded))
    # A file that libjpeg may refuse is decoded now, because Pillow would raise here.
    if not is_never_refused(encoded) and not source.decode_natively():
        return NOT_NATIVE
    defer(image, source)
    return ""


def _defer_png(image: PillowImage) -> str:
    """Decodes an open file and closes it; returns the reason if it cannot, else ``""``."""
    if image.mode not in ("RGB", "L", "RGBA"):
        return f"of mode {image.mode}"
    if image.png.im_n_frames is not None:
        return _ANIMATED
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        return _TRUNCATED_ALLOWED
    tiles = [tuple(tile) for tile in image.tile]
    if len(tiles) != 1 or image.decoderconfig:
        return NOT_NATIVE
    decoder, extent, begin, mode = tiles[0]
    if (decoder, extent, mode) != ("zip", (0, 0, *image.size), image.mode):
        return NOT_NATIVE
    try:
        file = file_cache.find_file(image.fp)
        encoded = read_known(image.fp, file)
    except Exception as error:  # a closed file, or a file object of the user's own class
        if comes_from_elsewhere(error):  # a signal handler's
            raise
        return _UNREADABLE
    source = _decoded(encoded, image, file)
    if source is None:
        return NOT_NATIVE
    # defer() calls load_end(), which reads the chunks behind the pixels.
    image.fp.seek(_end_of_data(encoded, begin))
    image._PngImageFile__idat = 0
    defer(image, source)
    return ""


def _end_of_data(encoded: bytes, begin: int) -> int:
    """Returns the offset at which the last IDAT chunk's data ends and its checksum begins."""
    chunk = begin - 8
    while encoded[chunk + 4 : chunk + 8] == b"IDAT":
        chunk += 12 + int.from_bytes(encoded[chunk : chunk + 4], "big")
    return chunk - 4


_FORMATS: dict[type, Callable[[PillowImage], str]] = {
    JpegImagePlugin.JpegImageFile: _defer_jpeg,
    PngImagePlugin.PngImageFile: _defer_png,
}


def opening_webp(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """Returns a ``WebPImageFile._open`` that stores the file's bytes until the image is loaded.

    Pillow's decoder gets the same bytes here, so later changes of the file affect neither.
    """

    def attempt(self: PillowImage) -> Any:
        if type(self) is not WebPImagePlugin.WebPImageFile or not activity.is_active():
            return PLAIN
        file: Any = self.fp
        if is_too_large(file):
            return original(self)
        known = file_cache.find_file(file)
        try:
            encoded = counted_read(file.read) if known is None else read_known(file, known)
        except Exception:
            file.seek(0)
            raise
        if type(encoded) is not bytes:
            file.seek(0)
            return PLAIN
        self.fp = io.BytesIO(encoded)
        try:
            call_library(original, self)
        finally:
            self.fp = file
        self.__dict__[_ENCODED] = encoded, known
        return None

    return guarded(attempt, original)


def load_webp(self: PillowImage) -> Any:
    """Replaces ``WebPImageFile.load``: decodes the file, and defers the operations that follow."""
    content = self.__dict__.pop(_ENCODED, None)
    if content is None or not activity.is_active():
        return PLAIN
    reason = _defer_webp(self, *content)
    if reason:
        counts().left[reason] += 1
        return PLAIN
    return Access(self)


def _defer_webp(image: PillowImage, encoded: bytes, file: KnownFile | None) -> str:
    if image.n_frames != 1:
        return _ANIMATED
    if image.mode not in ("RGB", "RGBA"):
        return f"of mode {image.mode}"
    source = _decoded(encoded, image, file)
    if source is None:
        return NOT_NATIVE
    image.info["timestamp"] = image.info["duration"] = 0
    image._WebPImageFile__physical_frame, image._WebPImageFile__loaded = 1, 0
    if image.fp and image._exclusive_fp:
        image.fp.close()
    image.fp = io.BytesIO()  # as Pillow leaves it, even if the file was closed before
    defer(image, source)
    return ""


def _decoded(encoded: bytes, image: PillowImage, file: KnownFile | None) -> EncodedSource | None:
    """Returns a source with the file's pixels, from the cache if they are there."""
    width, height = image.size
    opaque = file if file and image.mode != "RGBA" else None  # cached pixels have three channels
    opaque = opaque and opaque.if_whole(encoded)
    found = None if opaque is None else opaque.pixels()
    if found is not None and found.shape[:2] == (height, width):
        return EncodedSource(b"", image.size, found, opaque)
    pixels = np.empty((height, width, 4), np.uint8)
    began = time.perf_counter()
    with timed_decoding():
        if file_decoder().decode(encoded, pixels.data) is not RunStatus.OK:
            return None
    if opaque is not None:
        if opaque.measuring:
            opaque.count_whole(time.perf_counter() - began, width * height * 3)
        if opaque.wants_pixels(image.size):
            opaque.keep_pixels(np.ascontiguousarray(pixels[..., :3]))
        else:
            opaque.keep_bytes()
    return EncodedSource(b"", image.size, pixels)
