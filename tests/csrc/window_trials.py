"""Windows of files, by the decoders of JPEG alone and by executors, beside Pillow's pixels."""

from __future__ import annotations

import io
from collections.abc import Iterator
from random import Random

import numpy as np
from jpeg_writer import Frame
from native_samples import SIMD_LEVELS, jpeg, pillow_pixels, plan_for_size, relaid
from PIL import Image
from scan_writer import Grid, blocks_of

from fusionloader._native import RunStatus, testing
from fusionloader.transforms.executors.native import make_executor, sized_executor

OWN, LIBJPEG = testing.BaselineDecoder.OWN, testing.BaselineDecoder.LIBJPEG
LARGEST = 1 << 24  # pixels, for the sake of time
BEST = SIMD_LEVELS[-1]
READERS = {level: testing.WindowReader(OWN, level) for level in SIMD_LEVELS}
SAMPLINGS = ("4:4:4", "4:2:2", "4:2:0", "4:4:0", "grey")
RESTARTS = ({}, {"restart_marker_blocks": 1}, {"restart_marker_blocks": 5})
RESTARTS += ({"restart_marker_rows": 1}, {"restart_marker_rows": 2})


def encoded_as(sampling: str, image: Image.Image, **options) -> bytes:
    """A JPEG of one of ``SAMPLINGS``, of 4:1:1, or of RGB."""
    if sampling == "grey":
        return jpeg(image.convert("L"), **options)
    if sampling == "RGB":
        return jpeg(image, keep_rgb=True, subsampling=0, **options)
    if sampling in ("4:4:0", "4:1:1"):
        # Pillow encodes neither: blocks of another file are taken. The picture is scrambled, which
        # decoders do not mind.
        return relaid(image, 0x12 if sampling == "4:4:0" else 0x41, options)
    return jpeg(image, subsampling=("4:4:4", "4:2:2", "4:2:0").index(sampling), **options)


def reduced_pixels(encoded: bytes, denominator: int = 1) -> np.ndarray:
    """Pillow's; where reduced those of its draft, which is libjpeg's scaling."""
    with Image.open(io.BytesIO(encoded)) as image:
        if denominator > 1:
            # At most so small: a side may be too short for it otherwise, and Pillow round down.
            width, height = image.size
            image.draft(image.mode, (max(1, width // denominator), max(1, height // denominator)))
            assert image.size == (-(-width // denominator), -(-height // denominator))
        return np.asarray(image.convert("RGB"))


def pixels_or_none(encoded: bytes, denominator: int = 1) -> np.ndarray | None:
    """Pillow's; None where it raises."""
    try:
        return reduced_pixels(encoded, denominator)
    except (OSError, SyntaxError, ValueError):
        return None


def part(pixels: np.ndarray, window: tuple[int, int, int, int]) -> bytes:
    x, y, width, height = window
    return pixels[y : y + height, x : x + width].tobytes()


def some_window(random: Random, width: int, height: int) -> tuple[int, int, int, int]:
    w, h = random.randint(1, width), random.randint(1, height)
    return random.randint(0, width - w), random.randint(0, height - h), w, h


def assert_windows(
    encoded: bytes, random: Random, level: str = BEST, count: int = 4, denominator: int = 1
) -> None:
    """Windows of a reader, with the file's index if it has one, and without."""
    expected = reduced_pixels(encoded, denominator)
    height, width, _ = expected.shape
    reader = READERS[level]
    index = reader.index(encoded)
    for window in [
        (0, 0, width, height),
        *(some_window(random, width, height) for _ in range(count)),
    ]:
        for known in (b"", index) if index is not None else (b"",):
            read = reader.read(encoded, *window, known, denominator)
            assert read == part(expected, window), window
            assert not known or denominator > 1 or reader.started is OWN


def random_block(random: Random, largest: int, density: float) -> list[int]:
    block = [
        random.randint(-largest, largest) if random.random() < density else 0 for _ in "." * 64
    ]
    if random.random() < 0.3:
        block[random.choice((1, 2, 40, 63)) :] = []
    return block + [0] * (64 - len(block))


def random_planes(random: Random, frame: Frame, largest: int, density: float) -> list[Grid]:
    planes = []
    for component in range(len(frame.factors)):
        across, down = blocks_of(frame, component, padded=True)
        planes.append(
            [[random_block(random, largest, density) for _ in range(across)] for _ in range(down)]
        )
    return planes


def outcome(
    encoded: bytes, window: tuple[int, int, int, int], level: str = BEST, denominator: int = 1
) -> str:
    """What became of the file; the pixels are Pillow's or nobody's."""
    read = READERS[level].read(encoded, *window, b"", denominator)
    if read is None:
        return "left to Pillow"
    try:
        Image.open(io.BytesIO(encoded)).close()
    except (OSError, SyntaxError, ValueError):
        return "decoded"  # Pillow's own look at the header is stricter than libjpeg's
    expected = pixels_or_none(encoded, denominator)
    assert expected is not None, "decoded what Pillow refuses"
    assert read == part(expected, window)
    return "decoded"


def restarts(encoded: bytes) -> list[int]:
    begin = encoded.index(b"\xff\xda")
    return [
        i
        for i in range(begin, len(encoded) - 1)
        if encoded[i] == 0xFF and 0xD0 <= encoded[i + 1] <= 0xD7
    ]


def data_of_scans(encoded: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of the entropy-coded data of each scan."""
    at = 2
    while encoded[at + 1] != 0xD9:
        marker = encoded[at + 1]
        at += 2 + int.from_bytes(encoded[at + 2 : at + 4], "big")
        if marker == 0xDA:
            begin = at
            while encoded[at] != 0xFF or encoded[at + 1] == 0 or 0xD0 <= encoded[at + 1] <= 0xD7:
                at += 1
            yield begin, at


def windows(rng, width, height, count):
    yield (0, 0, width, height)
    for _ in range(count):
        w, h = int(rng.integers(1, width + 1)), int(rng.integers(1, height + 1))
        yield (int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1)), w, h)
    for x, y in {(0, 0), (width - 1, height - 1), (width // 2, height // 2)}:
        yield (x, y, 1, 1)


def assert_windows_match(encoded: bytes, rng, count: int, simd: str | None = None) -> None:
    expected = pillow_pixels(encoded)
    height, width, _ = expected.shape
    for x, y, w, h in windows(rng, width, height, count):
        executor = make_executor(plan_for_size(h, w), simd=simd)
        out = np.zeros((h, w, 3), np.uint8)
        assert executor.run_with(encoded, [("crop", x, y, w, h, (0, 0, 0))], out) is RunStatus.OK
        np.testing.assert_array_equal(
            out, expected[y : y + h, x : x + w], err_msg=f"{(x, y, w, h)} of {(width, height)}"
        )


EXECUTORS = {simd: make_executor(plan_for_size(0, 0), simd=simd) for simd in SIMD_LEVELS}


def decoded(encoded: bytes, simd: str | None = None) -> np.ndarray | None:
    """Height x width x 4, or ``None`` where the file is left to Pillow."""
    executor = EXECUTORS[simd] if simd else sized_executor(3, 0, 0)
    size = executor.image_size(encoded)
    if size is None or size[0] * size[1] > LARGEST:
        return None
    out = np.full((size[1], size[0], 4), 77, np.uint8)
    return out if executor.decode(encoded, out) is RunStatus.OK else None
