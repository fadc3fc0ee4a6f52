"""JPEG files of many kinds, damaged in the ways that decoders are weak at."""

from __future__ import annotations

import io
from functools import cache
from random import Random

import numpy as np
from PIL import Image

SIZES = ((1, 1), (17, 9), (60, 45), (300, 8), (7, 130))
OPTIONS = (
    {"subsampling": 0},
    {"subsampling": 1},
    {"subsampling": 2},
    {"subsampling": 2, "progressive": True},
    {"subsampling": 0, "progressive": True, "quality": 100},
    {"subsampling": 1, "progressive": True, "restart_marker_blocks": 3},
    {"subsampling": 1, "restart_marker_blocks": 2},
    {"subsampling": 2, "restart_marker_rows": 1, "optimize": True},
    {"subsampling": 2, "quality": 3},
    {"subsampling": 2, "quality": 97, "restart_marker_blocks": 1},
)
END = b"\xff\xd9"
# Frames, tables, scans, restarts, comments, sizes, ends: whatever a decoder acts on.
MARKERS = (0xC0, 0xC1, 0xC2, 0xC4, 0xC9, 0xCA, 0xCC, 0xD0, 0xD7, 0xD8, 0xD9, 0xDA, 0xDB, 0xDC)
MARKERS += (0xDD, 0xE0, 0xE1, 0xEE, 0xFE, 0x01)


@cache
def whole_files() -> tuple[bytes, ...]:
    rng = np.random.default_rng(1)
    files = []
    for width, height in SIZES:
        colors = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
        smooth = colors.resize((width // 5 + 1, height // 5 + 1)).resize((width, height))
        for options in OPTIONS:
            files.append(_encoded(smooth if options["subsampling"] else colors, **options))
        files += [_encoded(smooth.convert(mode)) for mode in ("L", "CMYK")]
        files.append(_encoded(smooth.convert("L"), progressive=True))
    return tuple(files)


def damaged(random: Random) -> bytes:
    """A file after one to four changes; most still end like a whole one."""
    data = bytearray(random.choice(whole_files()))
    for _ in range(random.randint(0, 4)):
        if len(data) > 8:
            random.choice(_CHANGES)(data, random)
    if random.random() < 0.9 and not data.endswith(END):
        data += END
    return bytes(data)


def segments(data: bytes) -> list[tuple[int, int, int]]:
    """Marker, begin and end of the segments in front of the first scan's data."""
    found, at = [], 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        found.append((data[at + 1], at, min(end, len(data))))
        if data[at + 1] == 0xDA:
            break
        at = end
    return found


def _encoded(image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def _flip_bits(data: bytearray, random: Random) -> None:
    # Half of the time in the headers, where every bit means something.
    limit = len(data) if random.random() < 0.5 else min(len(data), 640)
    for _ in range(random.choice((1, 1, 2, 8))):
        data[random.randrange(2, limit)] ^= 1 << random.randrange(8)


def _set_bytes(data: bytearray, random: Random) -> None:
    for _ in range(random.randint(1, 3)):
        data[random.randrange(2, len(data))] = random.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF))


def _truncate(data: bytearray, random: Random) -> None:
    del data[random.randrange(4, len(data)) :]


def _cut_out(data: bytearray, random: Random) -> None:
    begin = random.randrange(2, len(data))
    del data[begin : begin + random.choice((1, 2, 30, 500))]


def _insert_marker(data: bytearray, random: Random) -> None:
    at = random.randrange(2, len(data))
    length = random.choice((b"", b"\x00\x02", b"\x00\x00", b"\xff\xff", b"\x00\x11"))
    data[at:at] = bytes((0xFF, random.choice(MARKERS))) + length + random.randbytes(4)


def _splice(data: bytearray, random: Random) -> None:
    other = random.choice(whole_files())
    if random.random() < 0.5:
        data[random.randrange(2, len(data)) :] = other[random.randrange(2, len(other)) :]
        return
    _, begin, end = random.choice(segments(other))
    at = random.choice([place for _, place, _ in segments(data)] or [2])
    data[at:at] = other[begin:end]


def _change_segments(data: bytearray, random: Random) -> None:
    found = segments(data)
    if not found:
        return
    _, begin, end = random.choice(found)
    if random.random() < 0.5:
        del data[begin:end]
    else:
        data[begin:begin] = data[begin:end]


def _change_frame(data: bytearray, random: Random) -> None:
    """Other sizes, precision, sampling factors, tables or numbers of components."""
    for marker, begin, end in segments(data):
        if marker not in (0xC0, 0xC1, 0xC2) or end - begin < 13:
            continue
        which = random.randrange(4)
        if which == 0:
            sides = (0, 1, 7, 8, 9, 33, 255, 4096, 0xFFFF)
            side = random.choice(sides) if random.random() < 0.6 else random.randrange(600)
            place = begin + random.choice((5, 7))
            data[place : place + 2] = side.to_bytes(2, "big")
        elif which == 1:
            component = random.randrange((end - begin - 10) // 3)
            factors = random.choice((0x11, 0x12, 0x21, 0x22, 0x41, 0x14, 0x44, 0x31, 0x13, 0, 0xFF))
            data[begin + 11 + 3 * component] = factors
        elif which == 2:
            data[begin + random.choice((4, 9))] = random.choice((0, 1, 2, 3, 4, 8, 12, 16, 255))
        else:
            data[begin + 10 + random.randrange(max(end - begin - 10, 1))] = random.randrange(256)
        return


def _change_restarts(data: bytearray, random: Random) -> None:
    """A restart interval of its own, or restart markers where none belong."""
    if random.random() < 0.6:
        interval = random.choice((0, 1, 2, 3, 7, 255, 0xFFFF)).to_bytes(2, "big")
        data[2:2] = b"\xff\xdd\x00\x04" + interval
        return
    at = random.randrange(2, len(data))
    data[at:at] = bytes((0xFF, 0xD0 + random.randrange(8)))


_CHANGES = (
    _flip_bits,
    _flip_bits,
    _set_bytes,
    _truncate,
    _cut_out,
    _insert_marker,
    _splice,
    _change_segments,
    _change_frame,
    _change_frame,
    _change_restarts,
)
