"""Whole image files of six formats, in many modes: what is damaged to make corrupt ones."""

from __future__ import annotations

from functools import cache

import numpy as np
from fuzz import damaged_files
from PIL import Image
from support import png_files
from support.encoded_images import encoded

FORMATS = ("jpeg", "png", "webp", "gif", "bmp", "tiff")
SUFFIXES = {"jpeg": ".jpg", "tiff": ".tif"} | {name: f".{name}" for name in FORMATS[1:5]}
_SIZES = ((1, 1), (40, 30), (130, 17))
_MODES = {
    "png": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "webp": ("RGB", "RGBA"),
    "gif": ("1", "L", "P"),
    "bmp": ("1", "L", "P", "RGB", "RGBA"),
    "tiff": ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F"),
}
_OPTIONS: dict[str, tuple[dict[str, object], ...]] = {
    "png": ({}, {"optimize": True, "icc_profile": bytes(300)}),
    "webp": ({"quality": 40}, {"lossless": True, "exif": b"Exif\0\0", "xmp": b"<x/>"}),
    "gif": ({}, {"interlace": False, "comment": b"no more than this", "transparency": 1}),
    "bmp": ({},),
    "tiff": ({}, {"compression": "tiff_lzw"}, {"compression": "tiff_adobe_deflate"}),
}
# Bombs have nothing in them, so that files are small: mode, width, height.
SMALL_BOMBS = (("L", 3000, 1500), ("RGB", 2000, 1500))
# Within what Pillow decodes, with or without a warning, and beyond.
LARGE_BOMBS = (("L", 13_000, 13_000), ("RGB", 9400, 9400), ("L", 16_000, 16_000))


@cache
def whole_files(kind: str) -> tuple[bytes, ...]:
    """Files of a format that Pillow reads without complaint."""
    if kind == "jpeg":
        return damaged_files.whole_files()
    files = [
        encoded(image.convert(mode) if mode != "I;16" else deep(image), kind, **options)
        for image in _images()
        for mode in _MODES[kind]
        for options in _OPTIONS[kind]
    ]
    return (*files, *_EXTRAS[kind]())


@cache
def bomb(kind: str, mode: str, width: int, height: int) -> bytes:
    """A file of one color that is thousands of times larger when it is decoded."""
    image = Image.new(mode, (width, height))
    options = {"tiff": {"compression": "tiff_lzw"}, "webp": {"lossless": True, "method": 0}}
    return encoded(image, kind, **options.get(kind, {}))


def deep(image: Image.Image) -> Image.Image:
    """Two bytes a sample."""
    return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)


@cache
def _images() -> tuple[Image.Image, ...]:
    rng = np.random.default_rng(2)
    images = []
    for width, height in _SIZES:
        small = Image.fromarray(
            rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 4), np.uint8)
        )
        images.append(small.resize((width, height)).convert("RGB"))
    return tuple(images)


def _pngs() -> list[bytes]:
    """Transparent colors, text, an interlaced header, and more than one chunk of pixels."""
    pixels = np.asarray(_images()[1])
    palette = _images()[1].convert("P")
    return [
        png_files.png(pixels, split=100, before=[(b"tEXt", b"Title\0of it"), (b"tRNS", bytes(6))]),
        png_files.png(pixels, (4, 3), behind=[(b"zTXt", b"k\0\0" + bytes(20))]),
        png_files.file_of(
            png_files.header(40, 30, 2, interlaced=1), (b"IDAT", b"x"), (b"IEND", b"")
        ),
        encoded(palette, "png", transparency=bytes(range(0, 250, 10))),
        encoded(palette, "png", save_all=True, append_images=[palette.rotate(180)]),
    ]


def _webps() -> list[bytes]:
    first, second = _images()[1], _images()[1].rotate(180)
    return [encoded(first, "webp", save_all=True, append_images=[second], duration=40)]


def _gifs() -> list[bytes]:
    """Frames that replace each other, of sizes of their own."""
    first, second = (image.convert("P") for image in (_images()[1], _images()[1].rotate(180)))
    return [
        encoded(first, "gif", save_all=True, append_images=[second], disposal=disposal, loop=0)
        for disposal in (1, 2, 3)
    ]


def _bmps() -> list[bytes]:
    """Run lengths, which Pillow reads and does not write, and colors in 16 bits."""
    runs = b"".join(bytes((40, y * 7 % 256, 0, 0)) for y in range(30)) + b"\0\1"
    header = b"".join(
        number.to_bytes(size, "little")
        for number, size in ((40, 4), (40, 4), (30, 4), (1, 2), (8, 2), (1, 4), (len(runs), 4))
    )
    palette = bytes(byte for level in range(256) for byte in (level, level, level, 0))
    body = header.ljust(40, b"\0") + palette + runs
    start = (14 + 40 + len(palette)).to_bytes(4, "little")
    return [b"BM" + (14 + len(body)).to_bytes(4, "little") + bytes(4) + start + body]


def _tiffs() -> list[bytes]:
    first = _images()[1]
    return [
        encoded(first, "tiff", compression="jpeg"),
        encoded(first, "tiff", compression="packbits", tiffinfo={278: 4}),
        encoded(first.convert("1"), "tiff", compression="group4"),
        encoded(first, "tiff", big_tiff=True),
        encoded(first, "tiff", save_all=True, append_images=[first.convert("L")]),
    ]


_EXTRAS = {"png": _pngs, "webp": _webps, "gif": _gifs, "bmp": _bmps, "tiff": _tiffs}
