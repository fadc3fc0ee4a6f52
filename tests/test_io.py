"""Decoding for everybody: Pillow's pixels, its errors, and many threads at once."""

import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, UnidentifiedImageError
from support import encoded_images
from support.images import photo

from fusionloader.transforms.io import decode_jpeg, decode_window, encoded_size


def encoded(mode="RGB", kind="JPEG", **options):
    return encoded_images.encoded(
        photo(np.random.default_rng(3), 90, 60).convert(mode), kind, **options
    )


FILES = {
    "baseline": encoded(),
    "progressive": encoded(progressive=True),
    "grey": encoded("L"),
    "cmyk": encoded("CMYK"),
    "png": encoded(kind="PNG"),
}


def by_pillow(content):
    return Image.open(io.BytesIO(content)).convert("RGB")


@pytest.mark.parametrize("name", FILES)
def test_images_are_pillows(name):
    content, expected = FILES[name], np.asarray(by_pillow(FILES[name]))
    assert encoded_size(content) == (90, 60)
    assert np.array_equal(decode_jpeg(content), expected)
    assert np.array_equal(decode_jpeg(memoryview(content)), expected)
    planes = decode_jpeg(content, tensor=True)
    assert planes.is_contiguous() and planes.dtype == torch.uint8
    assert np.array_equal(planes.permute(1, 2, 0).numpy(), expected)


sides = st.integers(1, 80)


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(sorted(FILES)),
    corner=st.tuples(st.integers(-20, 80), st.integers(-20, 50)),
    extent=st.tuples(sides, sides),
    size=st.one_of(st.none(), st.tuples(sides, sides)),
    filter=st.sampled_from(["box", "bilinear", "hamming", "bicubic", "lanczos"]),
    tensor=st.booleans(),
)
def test_windows_are_pillows(name, corner, extent, size, filter, tensor):
    box = (*corner, corner[0] + extent[0], corner[1] + extent[1])
    expected = by_pillow(FILES[name]).crop(box)
    if size is not None:
        expected = expected.resize(size, Image.Resampling[filter.upper()])
    found = decode_window(FILES[name], box, size, filter=filter, tensor=tensor)
    pixels = found.permute(1, 2, 0).numpy() if tensor else found
    assert np.array_equal(pixels, np.asarray(expected))


@pytest.mark.parametrize("cut", [3, 100, 700])
def test_errors_are_pillows(cut):
    content = FILES["baseline"][:-cut]
    try:
        by_pillow(content)
    except OSError as error:
        expected = error
    for decode in (decode_jpeg, lambda content: decode_window(content, (0, 0, 9, 9))):
        with pytest.raises(type(expected)) as found:
            decode(content)
        assert str(found.value) == str(expected)


def test_what_is_no_image_is_refused():
    for function in (decode_jpeg, encoded_size):
        with pytest.raises(UnidentifiedImageError):
            function(b"not an image")


@pytest.mark.parametrize("box, size", [((5, 5, 5, 9), None), ((0, 9, 5, 5), None)])
def test_an_empty_window_is_refused(box, size):
    with pytest.raises(ValueError, match="is empty: it is left, upper, right, lower"):
        decode_window(FILES["baseline"], box, size)


def test_an_empty_size_and_an_unknown_filter_are_refused():
    with pytest.raises(ValueError, match="is empty: it is width, height"):
        decode_window(FILES["baseline"], (0, 0, 9, 9), (0, 5))
    with pytest.raises(ValueError, match="cubic"):
        decode_window(FILES["baseline"], (0, 0, 9, 9), (5, 5), filter="cubic")


def test_many_threads_decode_at_once():
    expected = {name: np.asarray(by_pillow(content)) for name, content in FILES.items()}
    with ThreadPoolExecutor(8) as pool:
        names = sorted(FILES) * 40
        for name, found in zip(
            names, pool.map(lambda n: decode_jpeg(FILES[n]), names), strict=True
        ):
            assert np.array_equal(found, expected[name])
