"""Every window of every kind of file, against Pillow's decode of the whole image."""

from __future__ import annotations

import io

import numpy as np
import pytest
from native_samples import SIMD_LEVELS, jpeg, photo, pillow_pixels, pixel_plan, plan_for_size, saved
from PIL import Image
from window_trials import SAMPLINGS, assert_windows_match, encoded_as

from fusionloader._native import RunStatus
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.stages import RandomResizedCrop

KINDS = {
    "plain": {},
    "optimised": {"optimize": True},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_blocks": 3},
    "restart rows": {"restart_marker_rows": 1},
    "low quality": {"quality": 7},
    "high quality": {"quality": 100},
}
SIZES = [(97, 83), (64, 48), (250, 31), (33, 200)]
TINY = [
    (1, 1),
    (2, 1),
    (1, 3),
    (3, 3),
    (5, 4),
    (8, 8),
    (9, 7),
    (16, 16),
    (17, 17),
    (7, 33),
    (40, 2),
]


@pytest.mark.few(20)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", [*SAMPLINGS, "4:1:1", "RGB"])
def test_a_window_has_the_pixels_of_the_whole_image(sampling, kind):
    rng = np.random.default_rng(1)
    for seed, size in enumerate([*SIZES, *TINY] if kind == "plain" else SIZES):
        if kind == "progressive" and sampling in ("4:4:0", "4:1:1"):
            size = (size[0] // 32 * 32, size[1] // 32 * 32 or 32)  # scans of one component pad less
        encoded = encoded_as(sampling, photo(*size, seed), **KINDS[kind])
        assert_windows_match(encoded, rng, 25 if size in SIZES else 12)


OTHERS = {
    **{f"png {mode}": {"mode": mode} for mode in ("RGB", "L", "RGBA", "P")},
    "webp": {"kind": "WEBP", "quality": 80},
    "webp without loss": {"kind": "WEBP", "lossless": True},
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("simd", SIMD_LEVELS)
def test_a_window_of_another_format_has_the_pixels_of_the_whole_image(name, simd):
    options = dict(OTHERS[name])
    image = photo(90, 70, 4)
    if options.get("mode") == "RGBA":
        image.putalpha(photo(90, 70, 5, colorful=False))
    encoded = saved(image.convert(options.pop("mode", "RGB")), **options)
    assert_windows_match(encoded, np.random.default_rng(2), 40, simd)


@pytest.mark.parametrize("name", ["unusual luma", "luma below chroma", "chroma unlike"])
def test_unusual_sampling_gives_pillow_s_pixels_or_is_left_to_it(name):
    rng = np.random.default_rng(5)
    encoded = bytearray(jpeg(photo(64, 64, 6), subsampling=2))
    at = next(i for i in range(len(encoded)) if encoded[i : i + 2] == b"\xff\xc0")
    factors = {
        "unusual luma": (0x22, 0x21, 0x12),
        "luma below chroma": (0x11, 0x22, 0x11),
        "chroma unlike": (0x22, 0x22, 0x11),
    }[name]
    for component, factor in enumerate(factors):
        encoded[at + 11 + 3 * component] = factor
    executor = make_executor(plan_for_size(5, 9))
    out = np.zeros((5, 9, 3), np.uint8)
    x, y = int(rng.integers(0, 30)), 3
    status = executor.run_with(bytes(encoded), [("crop", x, y, 9, 5, (0, 0, 0))], out)
    if status is RunStatus.OK:
        np.testing.assert_array_equal(out, pillow_pixels(bytes(encoded))[y : y + 5, x : x + 9])


@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:0"])
def test_fast_decoding_stays_near_the_exact_pixels(sampling):
    # DCT scaling needs both sides of the window at twice the target: never less than 2.
    smooth = photo(40, 30, 1).resize((800, 600), Image.Resampling.BICUBIC)
    encoded = encoded_as(sampling, smooth, quality=95)
    plan = pixel_plan(height=100, width=100)
    parameters = [("crop", 31, 17, 700, 500, (0, 0, 0)), ("resize", 100, 100, "bilinear")]
    exact, fast = np.zeros((2, 100, 100, 3), np.uint8)
    assert make_executor(plan).run_with(encoded, parameters, exact) is RunStatus.OK
    faster = type(plan)((), None, 100, 100, "fast")
    assert make_executor(faster).run_with(encoded, parameters, fast) is RunStatus.OK
    difference = np.abs(exact.astype(int) - fast)
    assert 0 < difference.mean() < 1.0  # not the same decoder, not another picture
    assert difference.max() < 16


def test_the_size_comes_from_the_header_alone():
    executor = make_executor(pixel_plan())
    encoded = jpeg(photo(321, 123, 0))
    assert executor.image_size(encoded) == (321, 123)
    assert executor.image_size(b"") is None
    assert executor.image_size(b"\x89PNG\r\n\x1a\n") is None


def other_files():
    image = photo(40, 30, 0)
    for name, mode, kind in (
        ("bmp", "RGB", "BMP"),
        ("gif", "RGB", "GIF"),
        ("cmyk", "CMYK", "JPEG"),
    ):
        file = io.BytesIO()
        image.convert(mode).save(file, kind)
        yield pytest.param(file.getvalue(), id=name)
    yield pytest.param(b"", id="empty")
    yield pytest.param(b"\xff\xd8\xff\xd9", id="only markers")
    yield pytest.param(jpeg(image) + b"\0", id="something after the end")
    huge = bytearray(jpeg(image))
    at = huge.index(b"\xff\xc0")
    huge[at + 5 : at + 9] = (20_000).to_bytes(2, "big") * 2
    yield pytest.param(bytes(huge), id="20,000 pixels a side")


@pytest.mark.parametrize("encoded", list(other_files()))
def test_what_is_not_a_plain_jpeg_is_left_to_pillow(encoded):
    plan = pixel_plan(RandomResizedCrop(8, 8, (0.1, 1), (1, 1), ("box",)), height=8, width=8)
    executor = make_executor(plan)
    assert (
        executor.run(encoded, 0, 0, 0, 0, np.zeros((8, 8, 3), np.uint8)) is RunStatus.NEEDS_PILLOW
    )
    assert executor.pixels(encoded, 0, 0, 0, 0) is None


def test_several_pictures_in_one_file_give_the_first():
    file = io.BytesIO()
    photo(70, 50, 1).save(file, "MPO", save_all=True, append_images=[photo(60, 40, 2)], quality=90)
    assert_windows_match(file.getvalue(), np.random.default_rng(0), 5)
