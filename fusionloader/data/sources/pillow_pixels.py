"""RGB bytes of Pillow images, with little more memory than the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

_BAND_PIXELS = 1 << 20


def rgb_bytes(image: Image) -> bytes | bytearray:
    """Returns the height x width x 3 bytes of ``image.convert("RGB")``.

    A large image is converted in bands of rows. Otherwise ``convert()`` would make a second image
    of 4 bytes a pixel, and ``tobytes()`` would hold the result twice while joining it.

    Raises:
        Exception: Pillow's error for a damaged image.
    """
    image.load()
    width, height = image.size
    if width * height <= _BAND_PIXELS:
        return image.convert("RGB").tobytes()
    rows = max(_BAND_PIXELS // width, 1)
    made = bytearray(width * height * 3)
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        band = image.crop((0, top, width, bottom))
        made[top * width * 3 : bottom * width * 3] = band.convert("RGB").tobytes()
    return made
