"""``Image.open`` of a plain JPEG file: one read of the file and one look at its markers."""

from __future__ import annotations

import io
import os
import time
import weakref
from pathlib import PurePath
from typing import Any

from PIL import Image, JpegImagePlugin

from fusionloader._native import OpenedJpeg
from fusionloader.data.deferred import activity, file_cache
from fusionloader.data.deferred.counts import counts
from fusionloader.data.deferred.guard import PLAIN
from fusionloader.data.deferred.pillow import Argument
from fusionloader.data.deferred.unparsed import UNPARSED, UnparsedFile

JPEG_SUFFIXES = (".jpg", ".jpeg", ".JPG", ".JPEG")
_START = b"\xff\xd8\xff"
# Larger files are read by Pillow in pieces, so that a dataset may look at their sizes alone.
_MOST_BYTES = 1 << 20
_HEADER_BYTES = 1 << 14  # a few files have longer headers
# Pillow's formats that it may try before JPEG, and that do not take a JPEG file: some of them
# always, and others if the program has called Image.init(), which goes by the names of modules.
_OTHERS = frozenset(
    (
        *("BMP", "DIB", "GIF", "PNG", "PPM", "TIFF", "WEBP"),
        *("AVIF", "BLP", "BUFR", "CUR", "DCX", "DDS", "EPS", "FITS", "FLI", "FTEX", "GBR", "GRIB"),
        *("HDF5", "ICNS", "ICO", "IM", "IMT", "IPTC", "JPEG2000", "PCX"),
    )
)
_MODES = {1: "L", 3: "RGB"}


class _Attempts:
    """Counts files, to leave them to Pillow if most of them are of another kind."""

    FIRST = 32
    made = refused = 0

    @classmethod
    def are_worth_it(cls) -> bool:
        return cls.made < cls.FIRST or 2 * cls.refused < cls.made


def open_image(fp: Argument, mode: Argument = "r", formats: Argument = None) -> Any:
    """Replaces ``Image.open``."""
    if mode != "r" or formats is not None or not activity.is_active():
        return PLAIN
    if not (_is_first() and _Attempts.are_worth_it()):
        return PLAIN
    path, file = "", None
    if isinstance(fp, (str, PurePath)):
        path = os.fspath(fp)
        if not path.endswith(JPEG_SUFFIXES):
            return PLAIN
    elif _is_plain(fp):
        file = fp
    else:
        return PLAIN
    began = time.perf_counter()
    # The rest of a file may be in the cache.
    first = _HEADER_BYTES if file_cache.is_in_use() else _MOST_BYTES
    opened = OpenedJpeg.open(path, _MOST_BYTES, first) if file is None else _read(file, first)
    _Attempts.made += 1
    if opened is None or _is_too_large(opened.size):
        _Attempts.refused += 1
        return PLAIN
    counted = counts()
    if type(file) is not io.BytesIO:
        counted.read_seconds += time.perf_counter() - began
        counted.read_bytes += len(opened.encoded)
    image: Any = JpegImagePlugin.JpegImageFile.__new__(JpegImagePlugin.JpegImageFile)
    image.__dict__.update(
        _im=None,
        _mode=_MODES[opened.components],
        _size=opened.size,
        _readonly=1,
        palette=None,
        filename=path,
        _exclusive_fp=file is None,
    )
    if file is not None:
        file.seek(opened.header_bytes)
        image.__dict__["fp"] = file
    image.__dict__[UNPARSED] = UnparsedFile(opened, path, file)
    noted = activity.fetched_images()
    if noted is not None:
        noted.append(weakref.ref(image))
    return image


def _is_first() -> bool:
    """Whether Pillow would give a JPEG file to its own class."""
    for name in Image.ID:
        factory, accept = Image.OPEN.get(name, (None, None))
        if name == "JPEG":
            return factory is JpegImagePlugin.jpeg_factory and accept is JpegImagePlugin._accept
        if name not in _OTHERS or not factory.__module__.startswith("PIL."):
            return False
    return False


def _is_plain(file: Argument) -> bool:
    """Whether a file object is one of Python's own, over memory or a file."""
    if type(file) is io.BytesIO:
        return True
    return type(file) is io.BufferedReader and type(file.raw) is io.FileIO


def _read(file: Any, first: int) -> OpenedJpeg | None:
    try:
        file.seek(0)
        if file.read(len(_START)) != _START:
            return None
    except (OSError, ValueError):  # a pipe, or a closed file
        return None
    if type(file) is io.BytesIO:
        return OpenedJpeg.of(file.getvalue())
    return OpenedJpeg.read(file.fileno(), _MOST_BYTES, first)


def _is_too_large(size: tuple[int, int]) -> bool:
    """Whether Pillow warns of an image of that size, or refuses it."""
    most = Image.MAX_IMAGE_PIXELS
    return most is not None and size[0] * size[1] > most
