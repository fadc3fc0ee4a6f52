"""Formats whose files are decoded natively where Pillow decodes them: PNG and WebP.

Both show only at their end whether they are damaged, and Pillow raises then. What is deferred is
what follows: the pixels are RGBX (or RGBA), which the first operation reads as they are.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import ImageFile, WebPImagePlugin

from fusionloader._native import RunStatus
from fusionloader.data.deferred import activity, kept
from fusionloader.data.deferred.core import Access, defer
from fusionloader.data.deferred.counts import counted_read, counts, timed_decoding
from fusionloader.data.deferred.guard import PLAIN, call_library, guarded
from fusionloader.data.deferred.kept import KnownFile
from fusionloader.data.deferred.pillow import PillowImage
from fusionloader.data.deferred.source import EncodedSource, is_too_large, read_known
from fusionloader.transforms.executors.native import file_decoder

NOT_NATIVE = "damaged, or of a kind that the native decoder does not know"
_ANIMATED = "animated"
_ENCODED = "_fusionloader_encoded"


def defer_png(image: PillowImage) -> str:
    """Decodes an open PNG file and closes it as Pillow does; returns why not, or nothing."""
    if image.mode not in ("RGB", "L", "RGBA"):
        return f"of mode {image.mode}"
    if image.png.im_n_frames is not None:
        return _ANIMATED
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        return "LOAD_TRUNCATED_IMAGES is set"
    tiles = [tuple(tile) for tile in image.tile]
    if len(tiles) != 1 or image.decoderconfig:
        return NOT_NATIVE
    decoder, extent, begin, mode = tiles[0]
    if (decoder, extent, mode) != ("zip", (0, 0, *image.size), image.mode):
        return NOT_NATIVE
    try:
        file = kept.file_of(image.fp)
        encoded = read_known(image.fp, file)
    except Exception:  # closed, for one, or the user's own kind of file
        return "the file cannot be read"
    source = _decoded(encoded, image, file)
    if source is None:
        return NOT_NATIVE
    # Pillow reads the chunks behind the pixels in load_end().
    image.fp.seek(_end_of_data(encoded, begin))
    image._PngImageFile__idat = 0
    defer(image, source)
    return ""


def opening_webp(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """Returns ``WebPImageFile._open``, which keeps the file's bytes until the image is loaded.

    Pillow's decoder has them from here on: what becomes of the file later is nothing to it.
    """

    def attempt(self: PillowImage) -> Any:
        if type(self) is not WebPImagePlugin.WebPImageFile or not activity.is_active():
            return PLAIN
        file: Any = self.fp
        if is_too_large(file):
            return original(self)
        known = kept.file_of(file)
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
    """``WebPImageFile.load``, which defers what follows."""
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
    image.fp = io.BytesIO()  # Pillow has the pixels there, also of a file that was closed
    defer(image, source)
    return ""


def _decoded(encoded: bytes, image: PillowImage, file: KnownFile | None) -> EncodedSource | None:
    """Returns the pixels, those that are kept of the file where there are."""
    width, height = image.size
    opaque = file if file and image.mode != "RGBA" else None  # what is kept has three channels
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
            opaque.took_all(time.perf_counter() - began, width * height * 3)
        if opaque.wants_pixels(image.size):
            opaque.keep_pixels(np.ascontiguousarray(pixels[..., :3]))
        else:
            opaque.keep_bytes()
    return EncodedSource(b"", image.size, pixels)


def _end_of_data(encoded: bytes, begin: int) -> int:
    """Returns where the last of the IDAT chunks ends, in front of its checksum."""
    chunk = begin - 8
    while encoded[chunk + 4 : chunk + 8] == b"IDAT":
        chunk += 12 + int.from_bytes(encoded[chunk : chunk + 4], "big")
    return chunk - 4
