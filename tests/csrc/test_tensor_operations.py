"""Color operations and blurs of tensors are the same on all vectors, and torchvision's."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_samples import SIMD_LEVELS
from support.campaigns import examples
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.executors.results import result_array
from fusionloader.transforms.plan.arguments import Context
from fusionloader.transforms.plan.stages import TO_FLOATS, Convert, Plan
from fusionloader.transforms.plan.torchvision import on_tensors

TABLE = torch.arange(256).float().div(255)
FLOATS = Plan((TO_FLOATS,), Convert("float32", TABLE.repeat(3).numpy().tobytes()), None, None)
OPERATIONS = [
    ("brightness", 1.3),
    *[("contrast", 1.3, rounding) for rounding in ("torch_v1", "torch_v2", "torch_v2_interleaved")],
    *[
        (*operation, rounding)
        for operation in (
            *(("saturation", 0.3), ("hue", -0.2), ("sharpness", 1.9)),
            *(("grayscale",), ("autocontrast",), ("blur", 5, 9, 1.3, 0.8)),
        )
        for rounding in ("torch_v1", "torch_v2")
    ],
    ("solarize", 0.5),
    ("invert",),
    ("channels", 2, 0, 1),
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=repr)
def test_floats_are_the_same_on_all_vectors(operation):
    for height, width in ((37, 53), (5, 6), (64, 64)):
        levels = np.random.default_rng(width).integers(20, 200, (height, width, 3), np.uint8)
        operations = [TO_FLOATS.operation, ("brightness", 1.4), operation, ("hflip",), operation]
        made = {
            make_executor(FLOATS, simd=simd).pixels_with(levels, operations)[0]
            for simd in SIMD_LEVELS
        }
        assert len(made) == 1


@settings(max_examples=examples(25, 300), deadline=None)
@given(
    st.sampled_from([1, 3, 5, 7, 9, 15, 17, 23, 31, 33]),
    st.sampled_from([1, 3, 9, 15, 21]),
    st.floats(0.0625, 30.0, width=32),
    st.tuples(st.integers(17, 80), st.integers(17, 80)),
    st.sampled_from(SIMD_LEVELS),
)
def test_a_blur_has_the_bits_of_torchvision(width, height, sigma, sides, simd):
    levels = np.random.default_rng(width).integers(0, 256, (*sides, 3), np.uint8)
    image = torch.from_numpy(levels).permute(2, 0, 1)
    context = Context(3, "tensor", in_plan=True)
    rounding = on_tensors.blur_rounding(v2.GaussianBlur(33), context, 33, 33)
    operation = ("blur", width, height, sigma, sigma * 2, rounding)
    expected = functional.gaussian_blur(image, [width, height], [sigma, sigma * 2])
    plan = Plan((), None, None, None)
    made = result_array(*make_executor(plan, simd=simd).pixels_with(levels, [operation]), plan)
    assert np.array_equal(made, expected.permute(1, 2, 0).numpy())
    executor = make_executor(FLOATS, simd=simd)
    made = executor.pixels_with(levels, [TO_FLOATS.operation, operation])
    expected = functional.gaussian_blur(image / 255, [width, height], [sigma, sigma * 2])
    assert made[0] == expected.contiguous().numpy().tobytes()
