"""What has to be equal in processes whose workers make samples for each other."""

from __future__ import annotations

import hashlib

import PIL
from PIL import Image, ImageFile


def pillow_settings() -> tuple[str, bool, int | None]:
    """Returns Pillow's version and the settings that change or refuse pixels."""
    return PIL.__version__, ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS


def digest_repr(value: object, nbytes: int) -> str:
    """Returns a digest of the ``repr`` of a value, as hexadecimal digits.

    Pickles of equal values may differ, because they depend on which parts are the same object.
    """
    return hashlib.blake2b(repr(value).encode(), digest_size=nbytes).hexdigest()
