"""WebP images have Pillow's pixels, or are left to it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from native_samples import photo, saved
from PIL import Image
from window_trials import decoded

SIZES = ((1, 1), (2, 3), (16, 16), (17, 33), (301, 2), (3, 200), (250, 187))


def with_alpha(width, height, seed):
    image = photo(width, height, seed)
    image.putalpha(photo(width, height, seed + 1, colorful=False))
    return image


def pillow_decoded(encoded):
    """All that Pillow has, or ``None`` where it raises."""
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            return np.asarray(image)
    except (OSError, EOFError, ValueError, Image.DecompressionBombError):
        return None


def assert_is_pillow_s(encoded):
    found = decoded(encoded)
    assert found is not None
    expected = pillow_decoded(encoded)
    np.testing.assert_array_equal(found[..., : expected.shape[2]], expected)


@pytest.mark.parametrize("quality", [0, 5, 30, 60, 75, 90, 100])
@pytest.mark.parametrize("method", [0, 4, 6])
def test_lossy_images(quality, method):
    for seed, size in enumerate(SIZES):
        assert_is_pillow_s(saved(photo(*size, seed), "WEBP", quality=quality, method=method))


@pytest.mark.parametrize("options", [{"quality": 20}, {"quality": 90}, {"lossless": True}], ids=str)
def test_images_with_alpha(options):
    for seed, size in enumerate(SIZES):
        assert_is_pillow_s(saved(with_alpha(*size, seed), "WEBP", **options))
        assert_is_pillow_s(saved(with_alpha(*size, seed), "WEBP", exact=True, **options))


@pytest.mark.parametrize("options", [{}, {"quality": 0}, {"near_lossless": 40}], ids=str)
def test_lossless_images(options):
    for seed, size in enumerate(SIZES):
        assert_is_pillow_s(saved(photo(*size, seed), "WEBP", lossless=True, **options))
        assert_is_pillow_s(
            saved(photo(*size, seed).quantize(13).convert("RGB"), "WEBP", lossless=True)
        )


def test_what_tells_about_the_image_may_stand_around_it():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert_is_pillow_s(
        saved(photo(40, 30, 1), "WEBP", exif=exif, xmp=b"<x/>", icc_profile=bytes(99))
    )


def test_an_animation_is_left_to_pillow():
    frames = [photo(20, 10, seed) for seed in range(3)]
    assert decoded(saved(frames[0], "WEBP", save_all=True, append_images=frames[1:])) is None


@pytest.mark.parametrize("options", [{"quality": 80}, {"lossless": True}], ids=str)
@pytest.mark.parametrize("make", [photo, with_alpha])
def test_a_file_cut_anywhere_whose_head_says_so_has_pillow_s_pixels_or_is_left_to_it(make, options):
    encoded = saved(make(40, 30, 3), "WEBP", **options)
    for length in range(21, len(encoded) - 1):
        said = encoded[:4] + (length - 8).to_bytes(4, "little") + encoded[8:length]
        if decoded(said) is not None:
            assert_is_pillow_s(said)
