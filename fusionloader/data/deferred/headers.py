"""Headers of JPEG and PNG files, as far as other libraries' decoders depend on them."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Format = Literal["JPEG", "PNG"]

UPRIGHT: Final = 1

# EXIF: the tag of the orientation, the type of its value, and the first bytes of a TIFF header.
_ORIENTATION, _SHORT = 0x0112, 3
_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_ORIENTATIONS = range(UPRIGHT, 9)
# JPEG: markers.
_EXIF = b"Exif\0\0"
_START_OF_SCAN, _APPLICATION_1 = 0xDA, 0xE1
_NO_FRAMES = (0xC4, 0xC8, 0xCC)  # markers between C0 and CF that begin no frame
# PNG: first bytes, of which the last 13 begin the header's chunk; channels by type of color.
_PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_PNG_PALETTE = 3
_PNG_CHANNELS = {0: 1, 2: 3, _PNG_PALETTE: 3, 6: 4}
_PNG_BACKGROUND = {0: 2, 2: 6, _PNG_PALETTE: 1, 6: 6}  # bytes of a color
_RESERVED = 0x20  # bit of a chunk's third letter, which newer libraries refuse


@dataclass(frozen=True, slots=True)
class Header:
    """The parts of a file's header that libraries depend on.

    Attributes:
        format: of the file.
        channels: number of channels of its pixels; those of a palette have three.
        orientation: how EXIF asks to turn the image, 1 (not at all) to 8; ``None`` where libraries
            read it differently.
        has_palette: whether pixels are indices of a palette.
    """

    format: Format
    channels: int
    orientation: int | None
    has_palette: bool = False


def read_header(encoded: memoryview) -> Header | None:
    """Returns the header of a JPEG or PNG file; ``None`` for any other content."""
    if bytes(encoded[:2]) == b"\xff\xd8":
        return _read_jpeg_header(encoded)
    return _read_png_header(encoded) if bytes(encoded[: len(_PNG)]) == _PNG else None


def _read_jpeg_header(encoded: memoryview) -> Header | None:
    place, channels = 2, 0
    segments: list[bytes] = []  # of the first application, which is EXIF's, and others'
    while place + 10 <= len(encoded) and encoded[place] == 0xFF:
        marker = encoded[place + 1]
        length = encoded[place + 2] << 8 | encoded[place + 3]
        if marker == _START_OF_SCAN:
            return Header("JPEG", channels, _read_segments(segments)) if channels else None
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAMES:
            channels = encoded[place + 9]
        elif marker == _APPLICATION_1:
            segments.append(bytes(encoded[place + 4 : place + 2 + length]))
        place += 2 + length
    return None


def _read_segments(segments: list[bytes]) -> int | None:
    """Returns the orientation that the segments of a JPEG's first application ask for.

    Some libraries read the first segment, whatever it is, and others the first that begins as EXIF.
    """
    # A TIFF header has an asterisk, by which some libraries tell it.
    named = [each for each in segments if each[:4] == _EXIF[:4] or b"*" in each[6:10]]
    found = _agreed(_read_orientation(each[6:]) for each in named)
    return found if found == UPRIGHT or segments[0].startswith(_EXIF) else None


def _read_png_header(encoded: memoryview) -> Header | None:
    """Returns the header of a PNG file with 8 bits a sample, without interlacing."""
    if len(encoded) < 33 or encoded[24] != 8 or encoded[28] != 0:
        return None
    color = encoded[25]
    channels = _PNG_CHANNELS.get(color)
    if channels is None:
        return None
    place, pixels_begin, found = 33, False, []
    while place + 12 <= len(encoded):
        length, kind = struct.unpack_from(">I4s", encoded, place)
        if kind[2] & _RESERVED or (kind == b"bKGD" and length != _PNG_BACKGROUND[color]):
            return None
        if kind == b"eXIf":
            # Some libraries do not read what comes behind the pixels.
            content = bytes(encoded[place + 8 : place + 8 + length])
            found.append(None if pixels_begin else _read_orientation(content))
        pixels_begin = pixels_begin or kind == b"IDAT"
        place += 12 + length
    return Header("PNG", channels, _agreed(found), color == _PNG_PALETTE)


def _agreed(orientations: Iterable[int | None]) -> int | None:
    """Returns the orientation of a file by all that it says of it."""
    distinct = set(orientations) or {UPRIGHT}
    return distinct.pop() if len(distinct) == 1 else None


def _read_orientation(tiff: bytes) -> int | None:
    """Returns the orientation in the first EXIF directory, by default ``UPRIGHT``.

    ``None`` for a damaged directory, because libraries treat it differently.
    """
    order = _BYTE_ORDERS.get(tiff[:4])
    if order is None:
        return None
    try:
        (start,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, start)
        entries = [
            struct.unpack_from(order + "HHIH", tiff, start + 2 + 12 * number)
            for number in range(count)
        ]
    except struct.error:
        return None
    found = {entry[1:] for entry in entries if entry[0] == _ORIENTATION} or {(_SHORT, 1, UPRIGHT)}
    kind, number, orientation = found.pop()
    plain = not found and (kind, number) == (_SHORT, 1) and orientation in _ORIENTATIONS
    return orientation if plain else None
