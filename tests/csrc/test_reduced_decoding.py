"""Decoding at a half, a quarter and an eighth: what libjpeg-turbo's scaling gives, bit for bit."""

from __future__ import annotations

import io
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_writer import Frame, write
from native_samples import SIMD_LEVELS, photo
from PIL import Image
from window_trials import (
    LIBJPEG,
    OWN,
    READERS,
    RESTARTS,
    encoded_as,
    part,
    random_block,
    some_window,
)

DENOMINATORS = (2, 4, 8)


def reduced_by_pillow(encoded: bytes, denominator: int) -> np.ndarray:
    """Pillow's draft, which is libjpeg's scaling."""
    with Image.open(io.BytesIO(encoded)) as image:
        # At most so small: a side may be too short for it otherwise, and Pillow round down.
        width, height = image.size
        image.draft(image.mode, (max(1, width // denominator), max(1, height // denominator)))
        expected = -(-width // denominator), -(-height // denominator)
        assert image.size == expected
        return np.asarray(image.convert("RGB"))


def sized(denominator: int):
    side = st.integers(max(denominator, 5), 170)
    return st.tuples(st.just(denominator), side, side)


@settings(max_examples=250, deadline=None)
@given(
    reduction=st.sampled_from(DENOMINATORS).flatmap(sized),
    sampling=st.sampled_from(("4:4:4", "4:2:0", "grey", "4:2:2", "4:4:0")),
    quality=st.integers(1, 100),
    optimize=st.booleans(),
    restarts=st.sampled_from(RESTARTS),
    level=st.sampled_from(SIMD_LEVELS),
    indexed=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_every_window_has_libjpeg_s_pixels(
    reduction, sampling, quality, optimize, restarts, level, indexed, seed
):
    denominator, *size = reduction
    options = {"quality": quality, "optimize": optimize, **restarts}
    encoded = encoded_as(sampling, photo(*size, seed % 1000), **options)
    expected = reduced_by_pillow(encoded, denominator)
    height, width, _ = expected.shape
    reader, random = READERS[level], Random(seed)
    index = reader.index(encoded) if indexed else b""
    windows = [(0, 0, width, height), *(some_window(random, width, height) for _ in range(4))]
    for window in windows:
        read = reader.read(encoded, *window, index, denominator)
        assert read == part(expected, window)
        one_way = sampling in ("4:2:2", "4:4:0")  # made larger in one direction: libjpeg's
        assert reader.started is (LIBJPEG if one_way else OWN)


@pytest.mark.parametrize("denominator", DENOMINATORS)
@pytest.mark.parametrize("level", SIMD_LEVELS)
@pytest.mark.parametrize("factors", [(0x11,), (0x11,) * 3, (0x22, 0x11, 0x11)])
def test_any_coefficients_give_libjpeg_s_pixels(factors, level, denominator):
    random = Random(f"{factors} {level} {denominator}")
    for _ in range(40):
        width, height = random.randint(8, 60), random.randint(8, 60)
        quantisers = random.choice((1, 3, 40)), random.choice((1, 7))
        frame = Frame(width, height, factors, quantisers, random.choice((0, 0, 1, 3)))
        density = random.choice((0.03, 0.3, 1.0))
        largest = int(min(1023, 5800 / max(quantisers) / 16))
        blocks = [random_block(random, largest, density) for _ in frame.blocks * frame.mcus]
        for block in blocks:
            block[0] = random.randint(-1, 1)
        encoded = write(frame, blocks)
        expected = reduced_by_pillow(encoded, denominator)
        window = some_window(random, expected.shape[1], expected.shape[0])
        read = READERS[level].read(encoded, *window, b"", denominator)
        assert read == part(expected, window)
        assert READERS[level].started is OWN


@pytest.mark.parametrize("level", SIMD_LEVELS)
@pytest.mark.parametrize("denominator", DENOMINATORS)
def test_impossible_magnitudes_are_left_to_pillow(level, denominator):
    random = Random(3)
    refused = 0
    for _ in range(80):
        frame = Frame(40, 24, (0x22, 0x11, 0x11), (random.choice((1, 4, 255)),) * 2)
        largest = random.choice((60, 500, 1500, 2047, 32767))
        blocks = [random_block(random, largest, 0.1) for _ in frame.blocks * frame.mcus]
        encoded = write(frame, blocks)
        window = (0, 0, 40 // denominator, 24 // denominator)
        read = READERS[level].read(encoded, *window, b"", denominator)
        refused += read is None
        assert read is None or read == part(reduced_by_pillow(encoded, denominator), window)
    assert 10 < refused < 70


@pytest.mark.parametrize("level", SIMD_LEVELS)
@pytest.mark.parametrize("mean", [511, 512, -512, -513, 700, -700])
def test_a_mean_that_libjpeg_wraps_around_is_not_decoded_to_another_one(level, mean):
    """Its one sample of a block wraps at 512, where that of eight by eight is at its limit."""
    frame = Frame(24, 8, (0x11,), (8, 8))
    encoded = write(frame, [[0] * 64, [mean] + [0] * 63, [-mean] + [0] * 63])
    window = READERS[level].read(np.frombuffer(encoded, np.uint8), 0, 0, 3, 1, b"", 8)
    expected = reduced_by_pillow(encoded, 8)
    assert (window is not None) == (-512 <= mean <= 511)
    assert window in (None, expected.tobytes())
