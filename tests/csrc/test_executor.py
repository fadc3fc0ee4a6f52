"""The whole way of a sample against torchvision's, bit for bit."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from native_samples import SIMD_LEVELS, apply, jpeg, levels_table, normalised, photo, pillow_pixels
from PIL import Image
from support.campaigns import examples
from torchvision.transforms import InterpolationMode as Mode

from fusionloader._native import RunStatus
from fusionloader.transforms.executors.native import make_executor, sized_executor
from fusionloader.transforms.plan.stages import (
    CenterCrop,
    Convert,
    Plan,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    ResizeShorterSide,
)

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
TRAIN = (RandomResizedCrop(224, 224, SCALE, RATIO, ("bilinear",)), RandomHorizontalFlip(0.5))
SIZES = [(500, 375), (333, 500), (180, 120), (1000, 90), (64, 640), (224, 224)]
FILES = [jpeg(photo(*size, seed)) for seed, size in enumerate(SIZES)]

CONVERSIONS = {
    "normalised float32": ("float32", normalised),
    "float32 by division": ("float32", lambda x: x.to(torch.float32).div(255)),
    "float32 by multiplication": (
        "float32",
        lambda x: F.normalize(x.to(torch.float32).mul(1 / 255), [0.5, 0.4, 0.3], [0.2, 0.3, 0.7]),
    ),
    "normalised levels": (
        "float32",
        lambda x: F.normalize(x.to(torch.float32), [123.7, 116.3, 103.5], [58.4, 57.1, 57.4]),
    ),
    "unrelated float32": ("float32", lambda x: x.to(torch.float32).sqrt()),
    "float16": ("float16", lambda x: normalised(x).to(torch.float16)),
    "bfloat16": ("bfloat16", lambda x: normalised(x).to(torch.bfloat16)),
    "float64": ("float64", lambda x: x.to(torch.float64).div(255)),
    "uint8": ("uint8", lambda x: x),
    "inverted uint8": ("uint8", lambda x: 255 - x),
}


def as_image(encoded):
    return Image.fromarray(pillow_pixels(encoded))


def raw(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().ravel()


def result(executor, encoded, index=0):
    out = np.zeros(executor.result_bytes, np.uint8)
    assert executor.run(encoded, 1, 0, index, 0, out) is RunStatus.OK
    return out


@pytest.mark.parametrize("simd", SIMD_LEVELS)
@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
def test_a_training_sample_has_torchvision_s_bits(kind, simd):
    stages = (RandomResizedCrop(224, 224, SCALE, RATIO, (kind,)), RandomHorizontalFlip(0.5))
    table = levels_table(normalised, "float32")
    executor = make_executor(Plan(stages, table, 224, 224), simd=simd)
    assert executor.conversion == ("lookup" if simd in ("scalar", "sse4") else "arithmetic")
    for index in range(24):
        encoded = FILES[index % len(FILES)]
        image = as_image(encoded)
        (_, left, top, width, height, _), _, *flip = executor.draw(1, 0, index, 0, *image.size)
        expected = F.resized_crop(image, top, left, height, width, [224, 224], Mode(kind))
        expected = F.hflip(expected) if flip else expected
        expected = F.normalize(F.to_tensor(expected), [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        np.testing.assert_array_equal(result(executor, encoded, index), raw(expected))


@pytest.mark.parametrize("simd", SIMD_LEVELS)
@pytest.mark.parametrize("name", CONVERSIONS)
def test_every_conversion_has_torch_s_bits(name, simd):
    element_type, convert = CONVERSIONS[name]
    table = levels_table(convert, element_type)
    stages = (RandomResizedCrop(37, 53, SCALE, RATIO, ("bilinear",)), RandomVerticalFlip(0.5))
    executor = make_executor(Plan(stages, table, 37, 53), simd=simd)
    for index, encoded in enumerate(FILES):
        image = as_image(encoded)
        cropped = apply(image, executor.draw(1, 0, index, 0, *image.size))
        expected = convert(F.pil_to_tensor(cropped))
        np.testing.assert_array_equal(result(executor, encoded, index), raw(expected))


def test_usual_float32_conversions_run_as_arithmetic():
    if "avx2" not in SIMD_LEVELS:
        pytest.skip("no AVX2")
    for name, (element_type, convert) in CONVERSIONS.items():
        if element_type != "float32":
            continue
        plan = Plan((CenterCrop(8, 8),), levels_table(convert, "float32"), 8, 8)
        expected = "lookup" if name == "unrelated float32" else "arithmetic"
        assert make_executor(plan).conversion == expected, name


@pytest.mark.parametrize("simd", SIMD_LEVELS)
@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
def test_an_evaluation_sample_has_torchvision_s_bits(kind, simd):
    table = levels_table(normalised, "float32")
    stages = (ResizeShorterSide(256, None, kind), CenterCrop(224, 224))
    executor = make_executor(Plan(stages, table, 224, 224), simd=simd)
    for encoded in FILES:
        image = F.center_crop(F.resize(as_image(encoded), 256, Mode(kind)), [224, 224])
        expected = F.normalize(F.to_tensor(image), [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        np.testing.assert_array_equal(result(executor, encoded), raw(expected))


def test_a_padded_crop_has_torchvision_s_bits():
    table = levels_table(normalised, "float32")
    stages = (RandomCrop(32, 32, (4, 4, 4, 4), False, (1, 2, 3)), RandomHorizontalFlip(0.5))
    executor = make_executor(Plan(stages, table, 32, 32))
    pixels = np.asarray(photo(32, 32, 9))
    for index in range(60):
        (_, left, top, _, _, _), *flip = executor.draw(5, 0, index, 0, 32, 32)
        padded = F.pad(Image.fromarray(pixels), [4, 4, 4, 4], (1, 2, 3))
        expected = F.crop(padded, top + 4, left + 4, 32, 32)
        expected = normalised(F.pil_to_tensor(F.hflip(expected) if flip else expected))
        out = np.zeros(executor.result_bytes, np.uint8)
        executor.run_pixels(pixels, 5, 0, index, 0, out)
        np.testing.assert_array_equal(out, raw(expected))


def test_a_plan_without_conversion_gives_pixels_of_any_size():
    executor = make_executor(Plan((ResizeShorterSide(50, None, "bilinear"),), None, None, None))
    assert executor.result_bytes == 0
    for encoded in FILES:
        pixels, shape = executor.pixels(encoded, 0, 0, 0, 0)
        expected = np.asarray(F.resize(as_image(encoded), 50))
        np.testing.assert_array_equal(np.frombuffer(pixels, np.uint8).reshape(*shape, 3), expected)
    with pytest.raises(ValueError, match="no fixed size"):
        executor.run(FILES[0], 0, 0, 0, 0, bytearray(8))


def test_decoded_pixels_give_the_same_as_the_file():
    executor = make_executor(Plan(TRAIN, levels_table(normalised, "float32"), 224, 224))
    out = np.zeros(executor.result_bytes, np.uint8)
    for index, encoded in enumerate(FILES):
        executor.run_pixels(pillow_pixels(encoded), 1, 0, index, 0, out)
        np.testing.assert_array_equal(out, result(executor, encoded, index))


@pytest.mark.properties
@settings(max_examples=examples(60, 2000), deadline=None)
@given(data=st.data())
def test_elements_lie_in_any_order_of_nested_loops(data):
    """Each axis is split into up to three, as for patches, some are repeated, and all permuted."""
    split = st.lists(st.integers(1, 4), min_size=1, max_size=3)
    *sides, repeats = [data.draw(split) for _ in range(3)]
    pixels = np.array(photo(math.prod(sides[1]), math.prod(sides[0]), 9))
    name = data.draw(st.sampled_from(list(CONVERSIONS)))
    expected = CONVERSIONS[name][1](torch.from_numpy(pixels).permute(2, 0, 1)).contiguous()
    parted = expected.view(3, *sides[0], *sides[1], *[1] * len(repeats))
    parted = parted.expand(*parted.shape[: -len(repeats)], *repeats)
    parted = parted.permute(data.draw(st.permutations(range(parted.dim()))))
    executor = ordered_executor(expected, levels_table(*CONVERSIONS[name][::-1]), parted)
    out = np.zeros(executor.result_bytes, np.uint8)
    executor.run_pixels_with(pixels, (), out)
    np.testing.assert_array_equal(out, raw(parted.reshape(-1).clone()))


def ordered_executor(image, convert, parted):
    steps = torch.empty(parted.shape, device="meta").stride()
    order = tuple(zip(parted.shape, parted.stride(), steps, strict=True))
    return sized_executor(3, *image.shape[1:], convert, order=order)


@pytest.mark.parametrize(
    "part",
    [
        lambda image: image[:, ::2],
        lambda image: image[..., 2:],
        lambda image: image.unfold(1, 4, 2),
        lambda image: image.expand(2**11, 3, 6, 8),
    ],
)
def test_an_order_that_is_none_of_all_elements_is_refused(part):
    image = torch.empty(3, 6, 8, device="meta")
    with pytest.raises(ValueError, match="the order of elements"):
        ordered_executor(image, levels_table(normalised, "float32"), part(image))


@pytest.mark.parametrize(
    "order",
    [
        [(3, 48, 48), (6, 8, 8), (8, 2, 1)],
        [(4, 48, 48), (6, 8, 8), (8, 1, 1)],
        [(3, 48, 54), (6, 8, 9), (9, 1, 1)],
        [(3, 48, 48), (6, 8, 8), (8, 1, 2)],
        [(3, 48, 0), (6, 8, 8), (8, 1, 1)],
        [(3, 48, 48), (6, 8, 8), (8, 1, 1 << 62)],
        [(3, 48, 48), (6, 8, 8), (0, 1, 1)],
        [(1 << 62, 48, 48), (6, 8, 8), (8, 1, 1)],
    ],
)
def test_an_order_with_gaps_in_the_result_is_refused(order):
    with pytest.raises(ValueError, match="the order of elements"):
        sized_executor(3, 6, 8, levels_table(normalised, "float32"), order=tuple(order))


def test_a_plan_that_makes_no_sense_raises():
    table = levels_table(normalised, "float32")
    with pytest.raises(ValueError, match="3071 bytes, expected 3072"):
        make_executor(Plan(TRAIN, Convert("float32", table.table[:-1]), 224, 224))
    with pytest.raises(ValueError, match="an order needs a conversion"):
        sized_executor(3, 6, 8, order=((3, 48, 48), (48, 1, 1)))
    with pytest.raises(ValueError, match=" or ".join(SIMD_LEVELS) + " on this processor, not mmx"):
        make_executor(Plan(TRAIN, table, 224, 224), simd="mmx")


def test_making_an_executor_imports_neither_torch_nor_numpy_nor_pillow():
    import subprocess
    import sys

    code = (
        "import sys; from fusionloader.transforms.executors.native import make_executor;"
        "from fusionloader.transforms.plan.stages import CenterCrop, Plan;"
        "make_executor(Plan((CenterCrop(8, 8),), None, 8, 8));"
        "print([m for m in ('torch', 'torchvision', 'numpy', 'PIL.Image') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


_LEVEL = """
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.stages import Plan

print(make_executor(Plan((), None, 8, 8)).simd_level)
"""


@pytest.mark.parametrize("level", SIMD_LEVELS[:2])
def test_the_environment_says_which_vectors_are_used(level):
    found = run_script(_LEVEL, FUSIONLOADER_SIMD=level)
    assert found == f"{level}\n"


def test_vectors_that_there_are_not_are_an_error():
    message = f"SIMD level must be {' or '.join(SIMD_LEVELS)} on this processor, not avx9"
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run_script(_LEVEL, FUSIONLOADER_SIMD="avx9")
    assert message in caught.value.stderr


def run_script(script, **environment):
    command = [sys.executable, "-c", script]
    options = {"capture_output": True, "text": True, "check": True}
    return subprocess.run(command, env={**os.environ, **environment}, **options).stdout
