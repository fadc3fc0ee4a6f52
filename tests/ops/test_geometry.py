"""Geometric operations give the pixels of torchvision's functions on PIL images, bit for bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torchvision.transforms.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.autoaugment import _apply_op

from fusionloader import _native
from fusionloader._native import testing

SIMD_LEVELS = _native.simd_levels()
MODES = {name: InterpolationMode(name) for name in ("nearest", "bilinear", "bicubic")}
AFFINE, PERSPECTIVE = Image.Transform.AFFINE, Image.Transform.PERSPECTIVE
FILLS = [(0, 0, 0), (128, 7, 255)]


def image_of(width: int, height: int, seed: int, kind: str = "noise") -> Image.Image:
    generator = np.random.default_rng(seed)
    if kind == "smooth":
        x, y = np.meshgrid(np.arange(width), np.arange(height))
        pixels = np.stack([x * 3, y * 2, x + y], 2) % 256
    else:
        pixels = generator.integers(0, 256, (height, width, 3))
    image = Image.fromarray(pixels.astype(np.uint8))
    return image.convert("L") if kind == "grey" else image


IMAGES = [
    image_of(17, 31, 0),
    image_of(64, 48, 1, "smooth"),
    image_of(40, 40, 2, "grey"),
    image_of(1, 1, 3),
    image_of(1, 19, 4),
    image_of(23, 1, 5, "grey"),
]
images = pytest.mark.parametrize("image", IMAGES, ids=lambda i: f"{i.width}x{i.height}{i.mode}")


def fill_of(image: Image.Image, fill: tuple[int, int, int]) -> list[int]:
    return list(fill) if image.mode == "RGB" else [fill[0]]


def transformed(image, size, method, numbers, mode, fill):
    """Pillow's own transform."""
    color = fill if image.mode == "RGB" else fill[0]
    return image.transform(size, method, numbers, Image.Resampling[mode.upper()], fillcolor=color)


def assert_pixels(expected: Image.Image, name: str, image: Image.Image, *arguments: object) -> None:
    pixels = np.ascontiguousarray(np.asarray(image).reshape(image.height, image.width, -1))
    wanted = np.asarray(expected).reshape(expected.height, expected.width, -1)
    for simd in SIMD_LEVELS:
        result, size = testing.geometry_op(name, pixels, arguments, simd)
        assert size == wanted.shape[:2], (name, arguments, simd)
        got = np.frombuffer(result, np.uint8).reshape(wanted.shape)
        different = int((got != wanted).sum())
        assert different == 0, (name, image.size, arguments, simd, different)


@images
@pytest.mark.few(30)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "operation", "most"),
    [
        ("shear_x", "ShearX", 0.99),
        ("shear_y", "ShearY", 0.99),
        ("translate_x", "TranslateX", 150.0 / 331.0 * 64),
        ("translate_y", "TranslateY", 150.0 / 331.0 * 64),
    ],
)
def test_operations_of_the_augmentation_policies(image, mode, name, operation, most):
    for step in range(31):
        for sign in (1, -1):
            fill = FILLS[step % 2]
            magnitude = sign * most * step / 30
            expected = _apply_op(image, operation, magnitude, MODES[mode], fill_of(image, fill))
            assert_pixels(expected, name, image, magnitude, mode, fill)


@images
@pytest.mark.parametrize("mode", MODES)
def test_rotation(image, mode):
    angles = [0, 0.5, -0.5, 30, -4.5, 90, 135, 180, 270, 360, -90, 451.25, -1e-20]
    centres = [None, (0, 0), (5.5, 11)]
    for step, angle in enumerate(angles):
        for expand in (False, True):
            for centre in centres:
                fill = FILLS[step % 2]
                expected = F.rotate(image, angle, MODES[mode], expand, centre, fill_of(image, fill))
                assert_pixels(expected, "rotate", image, angle, mode, expand, centre, fill)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    image=st.sampled_from(IMAGES),
    mode=st.sampled_from(list(MODES)),
    angle=st.floats(-180, 180),
    translation=st.tuples(st.integers(-20, 20), st.integers(-20, 20)),
    scale=st.sampled_from([1.0, 0.5, 2.0]) | st.floats(0.05, 8),
    shear=st.tuples(st.floats(-60, 60), st.floats(-60, 60)) | st.just((0.0, 0.0)),
    centre=st.none() | st.tuples(st.integers(-9, 70), st.integers(-9, 70)),
    turned=st.booleans(),
    fill=st.sampled_from(FILLS),
)
def test_affine(image, mode, angle, translation, scale, shear, centre, turned, fill):
    angle = angle if turned else 0.0
    expected = F.affine(
        image,
        angle,
        list(translation),
        scale,
        list(shear),
        MODES[mode],
        fill_of(image, fill),
        list(centre) if centre else None,
    )
    arguments = (angle, translation, scale, shear, mode, fill, centre)
    assert_pixels(expected, "affine", image, *arguments)


@images
@pytest.mark.parametrize("mode", MODES)
def test_plain_matrices(image, mode):
    w, h = image.size
    fill = FILLS[1]
    cases = [((1, 0, s * w, 0, 1, 0), "plain_translate_x", s * w) for s in (-0.45, 0.1, 2)]
    cases += [((1, 0, 0, 0, 1, s * h), "plain_translate_y", s * h) for s in (-0.45, 0.1, 2)]
    cases += [((1, s, 0, 0, 1, 0), "plain_shear_x", s) for s in (-0.3, 0.123, 0.0)]
    cases += [((1, 0, 0, s, 1, 0), "plain_shear_y", s) for s in (-0.3, 0.123, 0.0)]
    for matrix, name, number in cases:
        expected = transformed(image, image.size, AFFINE, matrix, mode, fill)
        assert_pixels(expected, name, image, number, mode, fill)


@images
@pytest.mark.parametrize("mode", MODES)
def test_matrices_of_all_kinds_to_other_sizes(image, mode):
    generator = np.random.default_rng(7)
    matrices = [
        (1, 0, -0.3, 0, 1, 0.7),
        (0.37, 0, 3.2, 0, 1.9, -4),
        (-1, 0, image.width, 0, -1, image.height),  # mirrored
        (-1, 0, 0.6, 0, -1, 0.6),  # one pixel of the image in a corner
        (19.7, 0, image.width * 0.6, 0, 19.7, 0),  # one column at most
        (1, 0.2, 0, 0, 1, 5),
        (1, 0, 3, 0.4, 1, 0),
        (1, 0.1, 40000, 0.1, 1, 0),  # beyond fixed point
        (3000, 1, -20000, 1, 900, -30000),
        (70000, 1, -3, 2, 900, 5),
        (1e300, 1e300, -1e308, 1, 1, 0),
        *(tuple(generator.normal(0, 1, 6) * (1, 1, 20, 1, 1, 20)) for _ in range(12)),
    ]
    for matrix in matrices:
        for size in ((image.width, image.height), (50, 21), (1, 3)):
            expected = transformed(image, size, AFFINE, matrix, mode, FILLS[1])
            assert_pixels(expected, "affine_transform", image, *size, matrix, mode, FILLS[1])


@images
@pytest.mark.parametrize("mode", MODES)
def test_perspective(image, mode):
    generator = np.random.default_rng(3)
    w, h = image.size
    corners = np.array([[0, 0], [w - 1, 0], [w - 1, h - 1], [0, h - 1]])
    given = [(1, 0, 0, 0, 1, 0, 0, 0), (0, 0, 0, 0, 0, 0, -2, 0), (1, 0, 2, 0, 1, 1, -0.2, 0.1)]
    for _ in range(8):
        ends = corners + generator.integers(-6, 7, (4, 2))
        if min(w, h) > 1:
            given.append(tuple(F._get_perspective_coeffs(corners.tolist(), ends.tolist())))
    for coefficients in given:
        if all(math.isfinite(c) for c in coefficients):
            expected = transformed(image, image.size, PERSPECTIVE, coefficients, mode, FILLS[1])
            assert_pixels(expected, "perspective_transform", image, coefficients, mode, FILLS[1])


@images
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_padding(image, mode):
    for amounts in ((0, 0, 0, 0), (4, 1, 2, 3), (0, 5, 0, 0), (50, 70, 90, 110), (-3, 2, 1, -2)):
        left, top, right, bottom = amounts
        if min(image.width + min(left, 0) + min(right, 0), image.height + min(bottom, 0)) < 1:
            continue
        expected = F.pad(image, list(amounts), fill_of(image, FILLS[1]), mode)
        assert_pixels(expected, "pad", image, *amounts, mode, FILLS[1])


def test_what_cannot_be_is_refused():
    pixels = np.zeros((2, 2, 3), np.uint8)
    with pytest.raises(ValueError, match="leaves nothing"):
        testing.geometry_op("pad", pixels, (-2, 0, 1, 0, "edge", FILLS[0]))
    with pytest.raises(ValueError, match="unknown operation"):
        testing.geometry_op("twirl", pixels, (1.0, "nearest", FILLS[0]))
