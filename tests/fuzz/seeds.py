"""Writes what fuzzing starts from: ``python seeds.py FOLDER`` (see ``make fuzz``)."""

from __future__ import annotations

import hashlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
from damaged_files import whole_files
from PIL import Image

# Of the targets of windows: level, choice and the window's place, in front of the file.
CONTROL_BYTES = 10


def control(random: Random, choice: int) -> bytes:
    """What stands in front of a file."""
    return bytes((random.randrange(256), choice)) + random.randbytes(CONTROL_BYTES - 2)


def window_seeds(random: Random) -> Iterator[bytes]:
    for file in whole_files():
        for choice in (0, 4, 13, 20):
            yield control(random, choice) + file


def png_seeds(random: Random) -> Iterator[bytes]:
    for image in images():
        yield control(random, 0) + saved(image, "PNG", dpi=(72, 72), icc_profile=bytes(200))
        yield control(random, 1) + random.randbytes(2000)
    yield control(random, 0) + saved(images()[0].quantize(9), "PNG")


def webp_seeds(random: Random) -> Iterator[bytes]:
    for image in images():
        for options in ({"quality": 50}, {"lossless": True}, {"quality": 90, "xmp": b"<x/>"}):
            yield saved(image, "WEBP", **options)


def images() -> list[Image.Image]:
    rng = np.random.default_rng(1)
    colors = Image.fromarray(rng.integers(0, 256, (30, 40, 4), np.uint8))
    smooth = colors.resize((7, 5)).resize((40, 30))
    return [each.convert(mode) for each in (colors, smooth) for mode in ("RGB", "RGBA", "L")]


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def main(folder: Path) -> None:
    kinds = {"window": window_seeds, "script": window_seeds, "png": png_seeds, "webp": webp_seeds}
    for name, seeds in kinds.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for data in seeds(Random(0)):
            (folder / name / hashlib.sha1(data).hexdigest()).write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
