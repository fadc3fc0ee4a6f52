"""Windows of damaged files: the decoder against Pillow, which has libjpeg-turbo decode all."""

from __future__ import annotations

import io
from random import Random

import numpy as np
from damaged_files import damaged
from PIL import Image

from fusionloader._native import testing

OWN, LIBJPEG = testing.BaselineDecoder.OWN, testing.BaselineDecoder.LIBJPEG

# Reused from file to file, as loaders do: nothing may stay from one to the next.
_readers: dict[tuple[testing.BaselineDecoder, str], testing.WindowReader] = {}


def compare_window(random: Random, level: str) -> None:
    """Raises AssertionError for pixels unlike Pillow's, ValueError where it has to decode."""
    data = damaged(random)
    encoded = np.frombuffer(data, np.uint8).copy()  # of just that size, for sanitizers
    try:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
            whole = _whole(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        # Pillow's own look at the header is stricter than libjpeg's.
        _reader(OWN, level).read(encoded, 0, 0, 8, 8)
        raise ValueError("no image") from error
    read = None
    for _ in range(2):
        window = _window(random, width, height)
        read = _check(OWN, level, encoded, window, whole)
        _check_index(random, level, encoded, window, read)
        _check_reduced(random, level, encoded, (width, height))
        _check(LIBJPEG, level, encoded, window, whole)
    if read is None:
        raise ValueError("left to Pillow")


def _check(
    baseline: testing.BaselineDecoder,
    level: str,
    encoded: np.ndarray,
    window: tuple[int, int, int, int],
    whole: np.ndarray | None,
) -> bytes | None:
    reader = _reader(baseline, level)
    read = reader.read(encoded, *window)
    if read is None:
        return None
    x, y, width, height = window
    assert whole is not None, "decoded what Pillow refuses"
    assert read == whole[y : y + height, x : x + width].tobytes(), (baseline, window)
    return read


def _check_index(
    random: Random,
    level: str,
    encoded: np.ndarray,
    window: tuple[int, int, int, int],
    expected: bytes | None,
) -> None:
    reader = _reader(OWN, level)
    index = reader.index(encoded)
    if index is not None:
        assert reader.read(encoded, *window, index) == expected, ("index", window)
    # Another file's, or none of any: the pixels mean nothing.
    reader.read(encoded, *window, random.randbytes(12 * random.randint(1, 60)))


def _check_reduced(random: Random, level: str, encoded: np.ndarray, size: tuple[int, int]) -> None:
    denominator = random.choice((2, 4, 8))
    window = _window(random, *(-(-side // denominator) for side in size))
    own, libjpeg = (
        _reader(baseline, level).read(encoded, *window, b"", denominator)
        for baseline in (OWN, LIBJPEG)
    )
    assert None in (own, libjpeg) or own == libjpeg, ("reduced", denominator, window)


def _whole(image: Image.Image) -> np.ndarray | None:
    """All pixels; None where Pillow raises for other reasons than the header."""
    if image.width * image.height > 1 << 20:
        raise ValueError("too large to be compared in no time")
    try:
        return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError):
        return None


def _window(random: Random, width: int, height: int) -> tuple[int, int, int, int]:
    w, h = random.randint(1, width), random.randint(1, height)
    if random.random() < 0.3:
        h = height
    return random.randint(0, width - w), random.randint(0, height - h), w, h


def _reader(baseline: testing.BaselineDecoder, level: str) -> testing.WindowReader:
    key = baseline, level
    if key not in _readers:
        _readers[key] = testing.WindowReader(baseline, level)
    return _readers[key]
