"""Whole plans: what is drawn at 224 pixels gives the native executor's results."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.device_cases import run_on_host
from support.images import NORMALIZE, photo
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

from fusionloader import _native, compile_plan
from fusionloader.transforms.executors.results import result_like
from fusionloader.transforms.plan.stages import ImageKind

BILINEAR, BICUBIC = InterpolationMode.BILINEAR, InterpolationMode.BICUBIC
LARGE = np.asarray(photo(np.random.default_rng(4), 300, 260))
FLOATS = [v1.ToTensor(), v1.Normalize(*NORMALIZE)]
POLICIES = {
    "RandAugment": v1.RandAugment(),
    "RandAugment, bilinear": v2.RandAugment(3, 15, interpolation=BILINEAR, fill=[12, 200, 77]),
    "AutoAugment": v1.AutoAugment(),
    "AutoAugment, CIFAR, bicubic": v1.AutoAugment(v1.AutoAugmentPolicy.CIFAR10, BICUBIC),
    "TrivialAugmentWide": v1.TrivialAugmentWide(),
    "jitter": v1.ColorJitter(0.4, 0.4, 0.4, 0.2),
    "SimCLR": v1.Compose(
        [
            v1.RandomApply([v1.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8),
            v1.RandomGrayscale(0.2),
            v1.RandomApply([v1.GaussianBlur(23, (0.1, 2.0))], 0.5),
        ]
    ),
    "geometry": v1.Compose(
        [
            v1.RandomRotation(40, expand=True),
            v1.RandomPerspective(0.7, 1.0),
            v1.RandomAffine(20, (0.2, 0.1), (0.7, 1.4), 10),
            v1.Pad(3, padding_mode="reflect"),
            v1.CenterCrop(224),
        ]
    ),
}
TIMM = (
    "rand-m9-mstd0.5-inc1",
    "rand-m9-n3-mstdinf",
    "original-mstd0.5",
    "v0r",
    "3a",
    "rand-t3a-inc1",
)


def as_bytes(result: torch.Tensor):
    return result.view(torch.uint8).numpy().reshape(-1)


def check(transform, count: int, *, lanes=(1,), images: ImageKind | None = None) -> None:
    compiled = compile_plan(transform, images=images)
    assert compiled.tail is None
    made = compiled.plan
    pixels = LARGE if made.channels == 3 else np.ascontiguousarray(LARGE[:, :, :1])
    for index in range(count):
        operations = compiled.draw(pixels.shape[1], pixels.shape[0], index=index)
        expected = compiled.apply(pixels, operations)
        assert _native.device_unsupported(operations) is None
        for number in lanes:
            out = result_like(made)
            run_on_host(made, pixels, operations, as_bytes(out), number)
            same = torch.equal(out.view(torch.uint8), expected.view(torch.uint8))
            assert same, (index, number, operations)


@pytest.mark.few(4)
@pytest.mark.parametrize("policy", POLICIES)
def test_policies_of_torchvision(policy):
    head = [v1.RandomResizedCrop(224), v1.RandomHorizontalFlip()]
    check(v1.Compose([*head, POLICIES[policy], *FLOATS]), 60)
    check(v1.Compose([*head, POLICIES[policy], *FLOATS]), 4, lanes=(3,))


@pytest.mark.few(3)
@pytest.mark.parametrize("spec", TIMM)
def test_policies_of_timm(spec):
    create_transform = pytest.importorskip("timm.data.transforms_factory").create_transform
    check(create_transform(224, is_training=True, auto_augment=spec, color_jitter=None), 60)


@pytest.mark.parametrize("erasing", [v1.RandomErasing(1.0, value=0.3), v1.RandomErasing(1.0)])
def test_erasing_of_the_result(erasing):
    check(v1.Compose([v1.RandomResizedCrop(96), *FLOATS, erasing, erasing]), 20, lanes=(1, 4))


def test_a_random_color_is_worked_out_on_the_host():
    create_transform = pytest.importorskip("timm.data.transforms_factory").create_transform
    check(create_transform(96, is_training=True, re_prob=1.0, re_mode="rand", re_count=3), 12)


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
def test_every_type_of_element(dtype):
    steps = [v2.RandomCrop(70), v2.RandAugment(), v2.PILToTensor(), v2.ToDtype(dtype, scale=True)]
    if dtype.is_floating_point:
        steps.append(v2.Normalize(*NORMALIZE))
    check(v2.Compose([*steps, v2.RandomErasing(0.7, value=1)]), 12, lanes=(1, 2))


def test_grey_images_and_grey_results():
    grey = ImageKind(channels=1)
    steps = [v1.RandomCrop(64), v1.RandAugment(), v1.ColorJitter(0.4, 0.4, 0.4, 0.1)]
    check(v1.Compose([*steps, v1.ToTensor()]), 30, lanes=(1, 2), images=grey)
    check(v1.Compose([*steps, v1.Grayscale(), v1.ToTensor()]), 30, lanes=(1, 2))


def test_a_result_of_another_size_than_the_plan_s_is_refused():
    made = compile_plan(v1.Compose([v1.CenterCrop(20), v1.ToTensor()])).plan
    out = as_bytes(result_like(made))
    with pytest.raises(ValueError, match="260 x 300 pixels, the plan says 20 x 20"):
        run_on_host(made, LARGE, [], out)


def test_wrong_erasing_is_refused():
    made = compile_plan(v1.Compose([v1.CenterCrop(20), v1.ToTensor()])).plan
    out = as_bytes(result_like(made))
    crop = ("crop", 0, 0, 20, 20, (0, 0, 0))
    for box, message in [
        (("erase", 5, 5, 16, 1, b"\0" * 12, False, 0), "not inside"),
        (("erase", 5, 5, 1, 1, b"\0" * 11, False, 0), "not those of one pixel"),
        (("erase", 5, 5, 1, 1, b"", True, 0), "erase with noise"),
    ]:
        with pytest.raises(ValueError, match=message):
            run_on_host(made, LARGE, [crop, box], out)


def test_noise_is_for_float32_results_alone():
    made = compile_plan(v1.Compose([v1.CenterCrop(20), v1.PILToTensor()])).plan
    operations = [("crop", 0, 0, 20, 20, (0, 0, 0)), ("erase", 5, 5, 1, 1, b"", False, 0)]
    with pytest.raises(ValueError, match="float32 results only"):
        run_on_host(made, LARGE, operations, as_bytes(result_like(made)))
