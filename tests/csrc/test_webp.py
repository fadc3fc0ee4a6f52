"""WebP images have Pillow's pixels, or are left to it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from native_samples import photo, pillow_pixels, plan_for_size
from PIL import Image

from fusionloader._native import RunStatus
from fusionloader.transforms.executors.native import make_executor, sized_executor

SIZES = ((1, 1), (2, 3), (16, 16), (17, 33), (301, 2), (3, 200), (250, 187))
BLACK = (0, 0, 0)


def saved(image, **options):
    file = io.BytesIO()
    image.save(file, "WEBP", **options)
    return file.getvalue()


def with_alpha(width, height, seed):
    image = photo(width, height, seed)
    image.putalpha(photo(width, height, seed + 1, colorful=False))
    return image


def decoded(encoded):
    """Height x width x 4, or ``None`` where the file is left to Pillow."""
    executor = sized_executor(3, 0, 0)
    size = executor.image_size(encoded)
    if size is None:
        return None
    out = np.full((size[1], size[0], 4), 77, np.uint8)
    return out if executor.decode(encoded, out) is RunStatus.OK else None


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
        assert_is_pillow_s(saved(photo(*size, seed), quality=quality, method=method))


@pytest.mark.parametrize("options", [{"quality": 20}, {"quality": 90}, {"lossless": True}], ids=str)
def test_images_with_alpha(options):
    for seed, size in enumerate(SIZES):
        assert_is_pillow_s(saved(with_alpha(*size, seed), **options))
        assert_is_pillow_s(saved(with_alpha(*size, seed), exact=True, **options))


@pytest.mark.parametrize("options", [{}, {"quality": 0}, {"near_lossless": 40}], ids=str)
def test_lossless_images(options):
    for seed, size in enumerate(SIZES):
        assert_is_pillow_s(saved(photo(*size, seed), lossless=True, **options))
        assert_is_pillow_s(saved(photo(*size, seed).quantize(13).convert("RGB"), lossless=True))


def test_what_tells_about_the_image_may_stand_around_it():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert_is_pillow_s(saved(photo(40, 30, 1), exif=exif, xmp=b"<x/>", icc_profile=bytes(99)))


@pytest.mark.parametrize("options", [{"quality": 80}, {"lossless": True}], ids=str)
def test_windows_have_the_pixels_of_the_whole(options):
    rng = np.random.default_rng(2)
    encoded = saved(photo(90, 70, 4), **options)
    whole = pillow_pixels(encoded)
    for _ in range(60):
        x, y = int(rng.integers(90)), int(rng.integers(70))
        width, height = int(rng.integers(1, 91 - x)), int(rng.integers(1, 71 - y))
        executor = make_executor(plan_for_size(height, width))
        out = np.zeros((height, width, 3), np.uint8)
        status = executor.run_with(encoded, [("crop", x, y, width, height, BLACK)], out)
        assert status is RunStatus.OK
        np.testing.assert_array_equal(out, whole[y : y + height, x : x + width])


def test_an_animation_is_left_to_pillow():
    frames = [photo(20, 10, seed) for seed in range(3)]
    assert decoded(saved(frames[0], save_all=True, append_images=frames[1:])) is None


@pytest.mark.parametrize("options", [{"quality": 80}, {"lossless": True}], ids=str)
@pytest.mark.parametrize("make", [photo, with_alpha])
def test_a_file_cut_anywhere_is_left_to_pillow(make, options):
    encoded = saved(make(40, 30, 3), **options)
    assert decoded(encoded) is not None
    for length in range(len(encoded) - 1):
        shorter = encoded[:length]
        assert decoded(shorter) is None
        # The same, with a length at its head that says so.
        if length > 20:
            said = shorter[:4] + (length - 8).to_bytes(4, "little") + shorter[8:]
            found = decoded(said)
            if found is not None:
                assert_is_pillow_s(said)


@pytest.mark.parametrize("options", [{"quality": 80}, {"lossless": True}], ids=str)
@pytest.mark.parametrize("make", [photo, with_alpha])
def test_whatever_bytes_change_the_pixels_are_pillow_s_or_left_to_it(make, options):
    rng = np.random.default_rng(5)
    original = np.frombuffer(saved(make(40, 30, 4), **options), np.uint8)
    accepted = 0
    for _ in range(1500):
        changed = original.copy()
        end = 64 if rng.integers(2) else len(changed)
        for place in rng.integers(0, end, rng.integers(1, 4)):
            changed[place] ^= 1 << rng.integers(8)
        encoded = changed.tobytes()
        found = decoded(encoded)
        if found is not None and found.size < 1 << 22:
            accepted += 1
            expected = pillow_decoded(encoded)
            assert expected is not None
            np.testing.assert_array_equal(found[..., : expected.shape[2]], expected)
    assert accepted > 20
