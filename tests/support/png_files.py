"""PNG files of any make: filters row by row, chunks of any size, streams that lie."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOR_TYPES = {1: 0, 3: 2, 4: 6}  # by samples of a pixel
Chunk = tuple[bytes, bytes]


def chunk(kind: bytes, data: bytes, checksum: int | None = None) -> bytes:
    crc = zlib.crc32(kind + data) if checksum is None else checksum
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)


def header(width: int, height: int, color_type: int, depth: int = 8, interlaced: int = 0) -> Chunk:
    return b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color_type, 0, 0, interlaced)


def filtered(pixels: NDArray[np.uint8], filters: Sequence[int]) -> bytes:
    """Rows of height x width x samples, each behind the number of its filter."""
    height, width, samples = pixels.shape
    rows = []
    padded = np.zeros((height + 1, width + 1, samples), np.int32)
    padded[1:, 1:] = pixels
    for y in range(height):
        kind = filters[y % len(filters)]
        left, above, corner = padded[y + 1, :-1], padded[y, 1:], padded[y, :-1]
        estimate = left + above - corner
        to_left, to_above, to_corner = (abs(estimate - each) for each in (left, above, corner))
        nearest = np.where(to_above <= to_corner, above, corner)
        paeth = np.where((to_left <= to_above) & (to_left <= to_corner), left, nearest)
        predicted = (0 * left, left, above, (left + above) // 2, paeth)[kind]
        rows.append(bytes([kind]) + (pixels[y] - predicted).astype(np.uint8).tobytes())
    return b"".join(rows)


def data_chunks(stream: bytes, size: int | None = None) -> list[Chunk]:
    """The IDAT chunks of a stream, of at most ``size`` bytes each."""
    step = size or max(len(stream), 1)
    return [(b"IDAT", stream[at : at + step]) for at in range(0, len(stream), step)]


def file_of(*chunks: Chunk) -> bytes:
    return SIGNATURE + b"".join(chunk(kind, data) for kind, data in chunks)


def png(
    pixels: NDArray[np.uint8],
    filters: Sequence[int] = (0, 1, 2, 3, 4),
    *,
    split: int | None = None,
    before: Sequence[Chunk] = (),
    behind: Sequence[Chunk] = (),
    color_type: int | None = None,
    stream: bytes | None = None,
) -> bytes:
    """A file of height x width x 1, 3 or 4 samples; ``stream`` in place of its own."""
    height, width, samples = pixels.shape
    kind = COLOR_TYPES[samples] if color_type is None else color_type
    packed = zlib.compress(filtered(pixels, filters)) if stream is None else stream
    data = data_chunks(packed, split)
    return file_of(header(width, height, kind), *before, *data, *behind, (b"IEND", b""))


def with_checksums(encoded: bytes) -> bytes:
    """The file with the right checksums of its chunks, so that what they hold is looked at."""
    made, at = SIGNATURE, len(SIGNATURE)
    while at + 12 <= len(encoded):
        length = int.from_bytes(encoded[at : at + 4], "big")
        made += chunk(encoded[at + 4 : at + 8], encoded[at + 8 : at + 8 + length])
        at += 12 + length
    return made
