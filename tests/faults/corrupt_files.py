"""Corrupt image files of six formats; each depends on its format, kind and number alone."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from random import Random

from faults.whole_images import FORMATS, LARGE_BOMBS, SMALL_BOMBS, bomb, whole_files
from fuzz import damaged_files
from support import png_files

# Every so many bombs is a large one, which takes seconds to decode, if the trial is long.
_LARGE_EVERY = 12
# As sides: nothing, what Pillow still decodes, and what overflows numbers of 16 and 32 bits.
_SIDES = (0, 1, 7, 255, 4096, 9400, 13_000, 16_383, 32_767, 65_500, 65_535)
_LONG_SIDES = (*_SIDES, 65_536, 1 << 20, (1 << 24) - 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)


def is_large_bomb(kind: str, number: int) -> bool:
    """Whether a file of a long trial has more than a hundred megapixels."""
    return kind == "bomb" and number % _LARGE_EVERY == 0


def corrupt_file(image_format: str, kind: str, number: int, *, large: bool = False) -> bytes:
    """A file after damage of that kind.

    Args:
        image_format: one of ``FORMATS``.
        kind: one of ``KINDS``.
        number: which of the kind.
        large: whether some of the bombs have more than a hundred megapixels.
    """
    random = Random(f"{image_format} {kind} {number}")
    if large and is_large_bomb(kind, number):
        return _bomb_of(image_format, LARGE_BOMBS[number // _LARGE_EVERY % len(LARGE_BOMBS)])
    return KINDS[kind](image_format, random)


def _flip_bits(image_format: str, random: Random) -> bytes:
    data = bytearray(random.choice(whole_files(image_format)))
    # Half of the time in the headers, where every bit means something.
    limit = len(data) if random.random() < 0.5 else min(len(data), 100)
    for _ in range(random.choice((1, 1, 2, 8, 32))):
        data[random.randrange(limit)] ^= 1 << random.randrange(8)
    # Behind wrong checksums nobody would look.
    if image_format == "png" and random.random() < 0.7:
        return png_files.with_checksums(bytes(data))
    return bytes(data)


def _truncate(image_format: str, random: Random) -> bytes:
    data = random.choice(whole_files(image_format))
    # Most decoders have more to say about the last bytes than about the others.
    lost = random.choice((1, 2, 8, random.randrange(len(data)), random.randrange(len(data))))
    filler = random.choice((b"", b"", bytes(lost), random.randbytes(lost)))
    return data[: max(len(data) - lost, 0)] + filler


def _splice(image_format: str, random: Random) -> bytes:
    if image_format == "jpeg" and random.random() < 0.5:
        return damaged_files.damaged(random)
    data = random.choice(whole_files(image_format))
    other_format = random.choice((image_format, random.choice(FORMATS)))
    other = random.choice(whole_files(other_format))
    head, tail = random.randrange(len(data)), random.randrange(len(other))
    if random.random() < 0.4:  # a header in front of another file's data
        head, tail = min(random.choice((4, 8, 16, 33, 64, 200)), len(data)), min(64, len(other))
    if random.random() < 0.5:
        return data[:head] + other[tail:]
    return data[:head] + other[tail : tail + random.choice((4, 60, 500))] + data[head:]


def _resize_header(image_format: str, random: Random) -> bytes:
    data = bytearray(random.choice(whole_files(image_format)))
    places, size, order = _PLACES[image_format](bytes(data))
    for at in places:
        if at + size > len(data) or random.random() < 0.3:
            continue
        side = random.choice(_LONG_SIDES if size == 4 else _SIDES) % (1 << 8 * size)
        if image_format == "webp" and bytes(data[12:16]) == b"VP8 ":
            side = side & 0x3FFF | random.choice((0, 0, 0x4000, 0xC000))
        data[at : at + size] = side.to_bytes(size, order)
    return png_files.with_checksums(bytes(data)) if image_format == "png" else bytes(data)


def _explode(image_format: str, random: Random) -> bytes:
    if image_format == "png" and random.random() < 0.3:
        return _text_bomb(random)
    data = bytearray(_bomb_of(image_format, random.choice(SMALL_BOMBS)))
    if random.random() < 0.6:
        for _ in range(random.choice((1, 4))):
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def _join(image_format: str, random: Random) -> bytes:
    """A file that is another one, too: behind its end, in a comment, or in front of it."""
    data, other = (
        random.choice(whole_files(name)) for name in (image_format, random.choice(FORMATS))
    )
    outer = random.choice(
        (other, b"PK\3\4" + other, b"<html><script>" + other, b"%PDF-1.7\n" + other)
    )
    choice = random.randrange(4)
    if choice == 0:
        return data + outer
    if choice == 1:
        return outer[: random.choice((2, 4, 14, len(outer)))] + data
    return _COMMENTED[image_format](data, outer)


def _bomb_of(image_format: str, shape: tuple[str, int, int]) -> bytes:
    mode, width, height = shape
    if image_format == "bmp":
        return _bmp_bomb(width, height)
    if image_format == "gif" and mode == "RGB":
        mode = "L"
    return bomb(image_format, mode, *_possible(image_format, width, height))


def _possible(image_format: str, width: int, height: int) -> tuple[int, int]:
    return (min(width, 16_383), min(height, 16_383)) if image_format == "webp" else (width, height)


def _bmp_bomb(width: int, height: int) -> bytes:
    """Run lengths that go 255 rows on at once."""
    data = bytearray(next(each for each in whole_files("bmp") if each[30] == 1))
    data[18:26] = width.to_bytes(4, "little") + height.to_bytes(4, "little")
    del data[int.from_bytes(data[10:14], "little") :]
    return bytes(data) + b"\0\2\0\xff" * (height // 255 + 1) + b"\0\1"


def _text_bomb(random: Random) -> bytes:
    """A text or profile of more memory than Pillow allows, or of just as much."""
    inflated = zlib.compress(bytes(random.choice((1 << 20, (1 << 20) + 1, 64 << 20))))
    name = random.choice((b"zTXt", b"iCCP", b"iTXt"))
    text = b"k\0" + (b"\1\0\0\0" if name == b"iTXt" else b"\0") + inflated
    image = whole_files("png")[-5]
    return image[:33] + png_files.chunk(name, text) * random.choice((1, 3)) + image[33:]


def _jpeg_places(data: bytes) -> tuple[list[int], int, str]:
    frames = [at for marker, at, _ in damaged_files.segments(data) if marker in (0xC0, 0xC1, 0xC2)]
    return [at + offset for at in frames for offset in (5, 7)], 2, "big"


def _webp_places(data: bytes) -> tuple[list[int], int, str]:
    """Of a lossy frame, or the words of a lossless or an extended one."""
    if data[12:16] == b"VP8 ":
        return [26, 28], 2, "little"
    return ([21], 4, "little") if data[12:16] == b"VP8L" else ([24, 27], 3, "little")


def _gif_places(data: bytes) -> tuple[list[int], int, str]:
    """The screen's, and place and size of what is most likely the first frame."""
    colors = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    frame = data.find(b",", colors)
    return [6, 8, *(range(frame + 1, frame + 9, 2) if frame > 0 else ())], 2, "little"


def _tiff_places(data: bytes) -> tuple[list[int], int, str]:
    """Values of the entries that stand for sizes, strips and lengths."""
    order = "little" if data[:2] == b"II" else "big"
    first = int.from_bytes(data[4:8], order)
    count = int.from_bytes(data[first : first + 2], order)
    entries = [first + 2 + 12 * number for number in range(count)]
    wanted = (256, 257, 277, 278, 279, 322, 323)
    return (
        [at + 8 for at in entries if int.from_bytes(data[at : at + 2], order) in wanted],
        4,
        order,
    )


_PLACES: dict[str, Callable[[bytes], tuple[list[int], int, str]]] = {
    "jpeg": _jpeg_places,
    "png": lambda data: ([16, 20], 4, "big"),
    "webp": _webp_places,
    "gif": _gif_places,
    "bmp": lambda data: ([18, 22, 34, 46], 4, "little"),
    "tiff": _tiff_places,
}


def _in_riff(data: bytes, other: bytes) -> bytes:
    chunk = b"JUNK" + len(other).to_bytes(4, "little") + other + bytes(len(other) % 2)
    size = len(data) - 8 + len(chunk)
    return data[:4] + size.to_bytes(4, "little") + data[8:] + chunk


def _in_jpeg(data: bytes, other: bytes) -> bytes:
    return (
        data[:2]
        + b"\xff\xfe"
        + (min(len(other), 65_000) + 2).to_bytes(2, "big")
        + (other[:65_000] + data[2:])
    )


def _in_gif(data: bytes, other: bytes) -> bytes:
    blocks = (other[at : at + 255] for at in range(0, len(other), 255))
    comment = b"!\xfe" + b"".join(bytes((len(each),)) + each for each in blocks) + b"\0"
    return data[:-1] + comment + data[-1:]


_COMMENTED: dict[str, Callable[[bytes, bytes], bytes]] = {
    "jpeg": _in_jpeg,
    "png": lambda data, other: data[:33] + png_files.chunk(b"tEXt", b"k\0" + other) + data[33:],
    "webp": _in_riff,
    "gif": _in_gif,
    "bmp": lambda data, other: data[:14] + data[14:54] + other + data[54:],
    "tiff": lambda data, other: (
        data[:4] + (len(data) + len(other)).to_bytes(4, "little") + data[8:] + other + data[8:]
    ),
}
KINDS: dict[str, Callable[[str, Random], bytes]] = {
    "bits": _flip_bits,
    "cut": _truncate,
    "spliced": _splice,
    "sizes": _resize_header,
    "bomb": _explode,
    "polyglot": _join,
}
