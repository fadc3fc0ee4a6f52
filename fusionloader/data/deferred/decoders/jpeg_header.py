"""What the header of a JPEG file says that libraries decide on: components and orientation."""

from __future__ import annotations

import struct
from dataclasses import dataclass

# Of EXIF: a tag, the type of its value, and how a TIFF header begins.
_ORIENTATION, _SHORT = 0x0112, 3
_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_START_OF_SCAN = 0xDA
_NO_FRAMES = (0xC4, 0xC8, 0xCC)  # of the markers from C0 to CF


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """Of a file that libraries may decode.

    Attributes:
        components: color components, 1 to 4.
        is_upright: whether EXIF asks for no turn or flip.
    """

    components: int
    is_upright: bool


def read_jpeg_header(encoded: memoryview) -> JpegHeader | None:
    """Returns the header of a JPEG file, or ``None`` for anything else."""
    if bytes(encoded[:2]) != b"\xff\xd8":
        return None
    place, components, upright = 2, 0, True
    while place + 10 <= len(encoded) and encoded[place] == 0xFF:
        marker = encoded[place + 1]
        length = encoded[place + 2] << 8 | encoded[place + 3]
        if marker == _START_OF_SCAN:
            return JpegHeader(components, upright) if components else None
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAMES:
            components = encoded[place + 9]
        elif marker == 0xE1 and bytes(encoded[place + 4 : place + 8]) == b"Exif":
            upright = upright and _is_upright(bytes(encoded[place + 4 : place + 2 + length]))
        place += 2 + length
    return None


def _is_upright(segment: bytes) -> bool:
    """Whether the first directory of EXIF's tags has no orientation but the usual one.

    What is damaged is not upright: libraries differ in what they make of it.
    """
    tiff = segment[6:]
    order = _BYTE_ORDERS.get(tiff[:4])
    if order is None:
        return False
    try:
        (start,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, start)
        entries = [
            struct.unpack_from(order + "HHIH", tiff, start + 2 + 12 * number)
            for number in range(count)
        ]
    except struct.error:
        return False
    return all(entry[1:] == (_SHORT, 1, 1) for entry in entries if entry[0] == _ORIENTATION)
