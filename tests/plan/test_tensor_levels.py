"""Transforms of uint8 tensors are compiled where their levels are torchvision's for tensors."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from support.images import photo
from support.warps import rounding_here
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from fusionloader import compile_plan
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.executors.replay import replay
from fusionloader.transforms.plan.exchange import plan_from_data, plan_to_data
from fusionloader.transforms.plan.stages import (
    AugMix,
    Magnitude,
    Plan,
    PolicyStep,
    RandomPolicy,
    Resize,
)
from fusionloader.transforms.plan.torchvision import on_tensors, policies
from fusionloader.transforms.plan.transforms import compile_transform

SIDES = st.integers(1, 90)
BILINEAR = v1.InterpolationMode.BILINEAR
# Each is the same for all images, so that the same is done twice.
SAME = {
    "brightness": lambda module: module.ColorJitter(brightness=(1.3, 1.3)),
    "darker": lambda module: module.ColorJitter(brightness=(0.37, 0.37)),
    "invert": lambda module: module.RandomInvert(1.0),
    "posterize": lambda module: module.RandomPosterize(3, 1.0),
    "threshold": lambda module: module.RandomSolarize(100.000001, 1.0),
    "solarize": lambda module: module.RandomSolarize(100, 1.0),
    "equalize": lambda module: module.RandomEqualize(1.0),
    "sharpness": lambda module: module.RandomAdjustSharpness(1.7, 1.0),
    "sharper": lambda module: module.RandomAdjustSharpness(0.1, 1.0),
    "contrast": lambda module: module.ColorJitter(contrast=(1.3, 1.3)),
    "saturation": lambda module: module.ColorJitter(saturation=(0.7, 0.7)),
    "hue": lambda module: module.ColorJitter(hue=(0.1, 0.1)),
    "grayscale": lambda module: module.Grayscale(3),
    "autocontrast": lambda module: module.RandomAutocontrast(1.0),
    "rotation": lambda module: module.RandomRotation((11.3, 11.3), fill=[1, 80, 200]),
    "turn": lambda module: module.Compose([module.CenterCrop(30), module.RandomRotation((90, 90))]),
    "half a turn": lambda module: module.RandomRotation((180, 180)),
    "bilinear rotation": lambda module: module.RandomRotation(
        (-7, -7), BILINEAR, fill=[1, 80, 200]
    ),
    "faded rotation": lambda module: module.RandomRotation((25, 25), BILINEAR, fill=None),
    "larger rotation": lambda module: module.RandomRotation((40, 40), BILINEAR, expand=True),
    "bilinear affine": lambda module: module.RandomAffine((3, 3), shear=(7, 7, 3, 3), fill=9),
    "about a corner": lambda module: module.RandomRotation((-50.1, -50.1), center=(3, 8)),
    "affine": lambda module: module.RandomAffine((3.0, 3.0), scale=(0.8, 0.8), shear=(7, 7, 3, 3)),
    "one of many": lambda module: module.RandomApply([module.ColorJitter(hue=(-0.1, -0.1))], 1.0),
    "flips": lambda module: module.Compose(
        [module.RandomHorizontalFlip(1.0), module.RandomVerticalFlip(1.0)]
    ),
    "the edge": lambda module: module.Pad(3, padding_mode="edge"),
    "cropped": lambda module: module.CenterCrop(30),
}
OTHER = {
    "wide blur": lambda module: module.GaussianBlur(103),
    "nearest": lambda module: module.Resize((9, 9), v1.InterpolationMode.NEAREST),
    "lanczos": lambda module: module.Resize((9, 9), v1.InterpolationMode.LANCZOS),
    "aliased": lambda module: module.Resize((9, 9), antialias=False),
    "one of many": lambda module: module.RandomApply([v1.GaussianBlur(3)], 1.0),
}
# v2's transforms in any order: some change how the tensor lies in memory, which contrast shows.
CHAINED = {
    "contrast": v2.ColorJitter(contrast=(10.0, 10.0)),
    "jitter": v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "window": v2.RandomCrop((7, 5)),
    "rows": v2.RandomCrop((9, 13)),
    "larger": v2.CenterCrop((22, 8)),
    "middle": v2.CenterCrop((11, 8)),
    "resize": v2.Resize((10, 13)),
    "same size": v2.Resize((9, 13)),
    "flip": v2.RandomHorizontalFlip(1.0),
    "upside down": v2.RandomVerticalFlip(0.5),
    "border": v2.Pad(1),
    "posterize": v2.RandomPosterize(5, 0.5),
    "equalize": v2.RandomEqualize(0.5),
    "grayscale": v2.RandomGrayscale(0.5),
    "sharpness": v2.RandomAdjustSharpness(1.9, 1.0),
    "blur": v2.GaussianBlur((7, 5)),
    "rotation": v2.RandomRotation(40, fill=9),
    "affine": v2.RandomAffine(10, (0.2, 0.1), (0.8, 1.2), 5),
    "bilinear rotation": v2.RandomRotation(40, BILINEAR, expand=True, fill=(9, 8, 7)),
    "bilinear affine": v2.RandomAffine(10, (0.2, 0.1), (0.8, 1.2), 5, BILINEAR),
    "perspective": v2.RandomPerspective(0.7, 0.9, fill=20),
    "nearest perspective": v2.RandomPerspective(0.7, 0.9, v1.InterpolationMode.NEAREST),
    "RandAugment": v2.RandAugment(3, 12),
    "bilinear RandAugment": v2.RandAugment(3, 12, interpolation=BILINEAR),
    "AutoAugment": v2.AutoAugment(),
    "AugMix": v2.AugMix(4, chain_depth=3),
    "nearest AugMix": v2.AugMix(interpolation=v1.InterpolationMode.NEAREST, fill=(9, 8, 7)),
}
FUNCTIONS = {
    "hflip": functional.horizontal_flip,
    "vflip": functional.vertical_flip,
    "grayscale": lambda image: functional.rgb_to_grayscale(image, 3),
    "blur": lambda image, width, height, *sigmas: functional.gaussian_blur(
        image, [width, height], sigmas
    ),
    "pad": lambda image, *sides: functional.pad(image, list(sides[:4]), 0),
    "resize": lambda image, width, height, _: functional.resize(
        image, [height, width], antialias=True
    ),
}


def on_tensor(image, name, *arguments):
    """A drawn operation by v2 on a tensor, wherever it lies."""
    if name in ("affine", "perspective"):  # tests/plan/test_tensor_warps.py
        return on_tensors.run_on_tensor(image, (name, *arguments))
    if str(arguments[-1:]).startswith("('torch_v"):
        arguments = arguments[:-1]
    if name == "crop":
        left, top, width, height, _ = arguments
        return functional.crop(image, top, left, height, width)
    if name == "mix":
        weight, weights, chains, _ = arguments
        return mixed(image, weight, weights, chains)
    function = FUNCTIONS.get(name) or getattr(functional, name, None)
    return (function or getattr(functional, f"adjust_{name}"))(image, *arguments)


def mixed(image, weight, weights, chains):
    """The sum of v2's AugMix."""
    mix = torch.tensor([weight]).view(1, 1, 1) * image
    for part, chain in zip(weights, chains, strict=True):
        changed = image
        for operation in chain:
            changed = on_tensor(changed, *operation)
        mix.add_(torch.tensor([part]).view(1, 1, 1) * changed)
    return mix.to(image.dtype)


def native(plan, image):
    levels = np.ascontiguousarray(np.asarray(image))
    pixels, shape = make_executor(replace(plan, convert=None)).pixels_of_pixels(levels, 0, 0, 0, 0)
    return torch.from_numpy(np.frombuffer(pixels, np.uint8).reshape(*shape, -1).copy())


@given(
    st.sampled_from(["bilinear", "bicubic"]),
    st.tuples(SIDES, SIDES),
    st.tuples(SIDES, SIDES),
    st.integers(0, 99),
)
@example("bicubic", (1, 900), (300, 1), 0)
@example("bilinear", (700, 3), (5, 11), 1)
@example("bilinear", (64, 64), (64, 32), 2)
def test_a_resize_has_the_levels_of_torch(name, before, after, seed):
    levels = np.random.default_rng(seed).integers(0, 256, (*before, 3), np.uint8)
    image = torch.from_numpy(levels).permute(2, 0, 1)
    expected = v2.Resize(after, v2.InterpolationMode(name))(image)
    plan = Plan((Resize(*after, f"torch_{name}"),), None, *after, "exact", 3, 3)
    assert torch.equal(native(plan, levels).permute(2, 0, 1), expected)


@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize("name", SAME)
@pytest.mark.few(12)
def test_what_is_compiled_after_the_conversion_has_the_levels_of_torch(name, module):
    step = SAME[name](module)
    for number in range(20):
        sides = np.random.default_rng(number).integers(31, 90, 2)
        image = photo(np.random.default_rng(number), *map(int, sides))
        if number % 4 == 0:  # few levels
            image = Image.fromarray(np.asarray(image) // 5 + 60)
        compiled = compile_transform(v1.Compose([v1.PILToTensor(), step]))
        assert compiled.tail is None, compiled.explain()
        expected = step(v1.functional.pil_to_tensor(image))
        assert torch.equal(native(compiled.plan, image).permute(2, 0, 1), expected)


@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize("name", OTHER)
def test_what_torch_rounds_otherwise_is_left_to_it(name, module):
    compiled = compile_transform(module.Compose([v2.PILToTensor(), OTHER[name](module)]))
    assert (
        compiled.tail is not None
        and "before the conversion" in compiled.explain()
        or (name in ("nearest", "aliased"))
    )
    assert len(compiled.tail.transforms) == 2


@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize("name", ["contrast", "saturation"])
def test_blends_of_one_channel_are_left_to_torchvision(name, module):
    steps = [module.Grayscale(1), v2.ToImage(), SAME[name](module)]
    plan = compile_plan(v2.Compose(steps))
    image = photo(np.random.default_rng(0), 31, 20)
    assert len(plan.tail.transforms) == 2
    made = plan.apply(image, plan.draw(*image.size))
    assert torch.equal(made, v2.Compose(steps)(image))


@given(
    st.lists(st.sampled_from(sorted(CHAINED)), min_size=1, max_size=6),
    st.tuples(st.integers(9, 20), st.integers(9, 20)),
    st.integers(0, 99),
)
@example(["contrast"], (9, 18), 0)
@example(["rows", "resize", "contrast"], (20, 13), 0)
@example(["window", "flip", "resize", "contrast"], (19, 17), 0)
def test_a_chain_of_v2_has_the_levels_of_torch(names, sides, seed):
    levels = np.random.default_rng(seed).integers(0, 256, (*sides, 3), np.uint8)
    plan = compile_plan(v2.Compose([v2.ToImage(), *map(CHAINED.get, names)]))
    assert plan.tail is None, plan.explain()
    try:
        operations = plan.draw(sides[1], sides[0], index=seed)
    except ValueError:  # a crop that is larger than the image
        return
    image = functional.to_image(Image.fromarray(levels))
    for operation in operations:
        image = on_tensor(image, *operation)
    found = plan.picture(Image.fromarray(levels), operations)
    assert np.array_equal(np.asarray(found), image.permute(1, 2, 0).numpy()), operations


def test_images_changed_before_the_conversion_lie_as_new_tensors():
    contrast = v2.ColorJitter(contrast=(1.7, 1.7))
    flip, floats = v2.RandomHorizontalFlip(1.0), v2.ToDtype(torch.float32, scale=True)
    for before in (v2.Pad(1), v2.Resize((7, 5))):
        for after in ([contrast], [flip, floats, contrast]):
            transform = v2.Compose([before, v2.ToImage(), *after])
            plan = compile_plan(transform)
            assert plan.tail is None
            for index in range(100):
                width, height = np.random.default_rng(index).integers(2, 8, 2)
                image = photo(np.random.default_rng(index), int(width), int(height))
                made = plan.apply(image, plan.draw(*image.size))
                assert torch.equal(torch.as_tensor(made), torch.as_tensor(transform(image)))


PLACED = {
    "rotation": v2.RandomRotation((33, 33), BILINEAR),
    "turn": v2.RandomRotation((90, 90), expand=True),
    "half a turn": v2.RandomRotation((180, 180)),
    "hue": v2.ColorJitter(hue=(0.2, 0.2)),
    "v1's hue": v1.ColorJitter(hue=0.2),
    "grayscale": v2.Grayscale(3),
    "border": v2.Pad(2),
    "window and resize": v2.RandomResizedCrop((40, 40)),
    "window": v2.CenterCrop(9),
    "larger": v2.CenterCrop(40),
    "sometimes": v2.RandomEqualize(1.0),
    "AugMix": v2.AugMix(),
    "v1's resize": v1.Resize((9, 9)),
    "flip": v2.RandomHorizontalFlip(1.0),
}
LEVELS, FLOATS = [v2.ToImage()], [v2.ToImage(), v2.ToDtype(torch.float32)]


@pytest.mark.few(20)
@pytest.mark.parametrize("first", [LEVELS, FLOATS, [v1.ToTensor()]], ids=["u8", "f32", "planar"])
@pytest.mark.parametrize("name", PLACED)
def test_code_that_follows_sees_the_strides_of_torch(name, first):
    for between in ([], [v2.RandomVerticalFlip(1.0)], [v2.CenterCrop(9), v2.RandomInvert(1.0)]):
        transform = v2.Compose([*first, PLACED[name], *between, v2.Lambda(strides)])
        plan = compile_plan(transform)
        image = photo(np.random.default_rng(0), 31, 20)
        assert plan.apply(image, plan.draw(*image.size)) == transform(image), plan.explain()


def strides(image):
    return image.stride()


def is_plain(image):
    return torch.full_like(image, type(image) is torch.Tensor)


@pytest.mark.parametrize(
    "last",
    [
        v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
        v2.ToDtype({torch.Tensor: torch.float16, tv_tensors.Image: torch.float32}, scale=True),
        is_plain,
    ],
    ids=["image alone", "either", "code"],
)
@pytest.mark.parametrize(
    "step",
    [v1.Resize((20, 24)), v1.RandomHorizontalFlip(1.0), v2.CenterCrop(16)],
    ids=["resize", "flip", "v2"],
)
def test_what_follows_v1_finds_the_type_that_v1_leaves(step, last):
    image = photo(np.random.default_rng(0), 48, 40)
    steps = v1.Compose([v2.ToImage(), step, v2.CenterCrop(16), last])
    plan = compile_plan(steps)
    found, expected = plan.apply(image, plan.draw(*image.size)), steps(image)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)
    by_v1 = "v1 makes a plain tensor" in plan.explain()
    assert by_v1 == (type(step).__module__ == "torchvision.transforms.transforms")


def test_contrast_after_a_policy_that_may_turn_the_tensor_is_left_to_torch():
    steps = [v2.ToImage(), v2.TrivialAugmentWide()]
    assert compile_transform(v2.Compose(steps)).tail is None
    assert compile_transform(v2.Compose([*steps, v2.ColorJitter(contrast=0.5)])).tail is not None


MAGNITUDES = {
    "ShearX": (-0.3, 0.17),
    "ShearY": (-0.05, 0.3),
    "TranslateX": (-9.3, 4.0),
    "TranslateY": (12.7, -1.0),
    "Rotate": (-30.0, 21.1),
    "Brightness": (0.3,),
    "Color": (-0.9, 0.4),
    "Contrast": (-0.2, 0.9),
    "Sharpness": (0.6, -0.9),
    "Posterize": (5.0,),
    "AutoContrast": (0.0,),
    "Equalize": (0.0,),
}


@pytest.mark.parametrize("rounding", ["torch_v1", "torch_v2"])
@pytest.mark.parametrize("name", MAGNITUDES)
@pytest.mark.parametrize("filter", ["nearest", "bilinear"])
def test_a_step_of_a_policy_has_the_levels_of_torch(name, rounding, filter):
    mode, fill = v1.InterpolationMode(filter), [5.0, 80.0, 250.0]
    op = policies._OPS[name]
    for level in MAGNITUDES[name]:
        offset = 1.0 if op in policies._ENHANCING else 0.0
        step = PolicyStep(op, 1.0, Magnitude((level,), offset=offset))
        stage = RandomPolicy(((step,),), 1, (filter,), (5, 80, 250))
        stage = replace(stage, rounding=rounding, warp_rounding=rounding_here(rounding))
        for height, width in ((41, 58), (7, 9), (64, 64)):
            levels = np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)
            image = torch.from_numpy(levels).permute(2, 0, 1)
            if rounding == "torch_v1":
                expected = v1.autoaugment._apply_op(image, name, level, mode, fill)
            else:
                expected = v2.RandAugment()._apply_image_or_video_transform(
                    image, name, level, mode, {torch.Tensor: fill}
                )
            found = native(Plan((stage,), None, height, width), levels)
            assert torch.equal(found.permute(2, 0, 1), expected), (level, height, width)


class MixedByV1(v1.AugMix):
    """With the weights and the only operation that it is told."""

    def _sample_dirichlet(self, params):
        return self.shares.pop(0)

    def _augmentation_space(self, *_):
        return {name: (torch.full((10,), level), False) for name, level in self.calls}


class MixedByV2(v2.AugMix):
    """With the weights and the operations that it is told."""

    def _sample_dirichlet(self, params):
        return self.shares.pop(0)

    def _get_random_item(self, _):
        name, level = self.calls.pop(0)
        return name, (lambda *_: torch.full((10,), level), False)


CHAINS = {
    "turned by nothing": [("Rotate", 0.0), ("Contrast", 9.0)],
    "sheared by nothing": [("ShearX", 0.0), ("Contrast", 9.0)],
    "contrast": [("Contrast", 9.0)],
    "sheared": [("ShearY", 0.25)],
    "sharper": [("Sharpness", -0.875)],
}


@pytest.mark.few(12)
@pytest.mark.parametrize("first", [None, v2.CenterCrop((9, 13)), v2.Pad(1)])
@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_augmix_has_the_levels_of_torch(name, module, first):
    calls = CHAINS[name][-1:] if module is v1 else CHAINS[name]
    mixed_by = (MixedByV1 if module is v1 else MixedByV2)(1, 1, len(calls), fill=7)
    rounding = "torch_v1" if module is v1 else "torch_v2"
    steps = tuple(
        PolicyStep(op, 1.0, Magnitude((level,), offset=float(op in policies._ENHANCING)))
        for op, level in ((policies._OPS[name], level) for name, level in calls)
    )
    policy = RandomPolicy((steps,), 1, ("bilinear",), (7, 7, 7))
    policy = replace(policy, rounding=rounding, warp_rounding=rounding_here(rounding))
    before = [] if first is None else [first]
    plan = compile_transform(v2.Compose([v2.ToImage(), *before])).plan
    plan = replace(plan, convert=None, height=None, width=None)
    plan = replace(plan, stages=(*plan.stages, AugMix(policy, 1, 1, 1.0)))
    for index in range(20):
        image = photo(np.random.default_rng(index), 17 + index, 15)
        *_, (_, weight, weights, *_) = make_executor(plan).draw(0, 0, 0, 0, *image.size)
        mixed_by.calls = list(calls)
        mixed_by.shares = [torch.tensor([[weight, 1.0]]), torch.tensor([weights])]
        expected = v2.Compose([v2.ToImage(), *before, mixed_by])(image)
        assert torch.equal(native(plan, image).permute(2, 0, 1), torch.as_tensor(expected))


def test_fast_decoding_has_all_of_them_compiled_as_on_pil_images():
    for make in (SAME["hue"], SAME["faded rotation"], lambda module: module.Resize((9, 9))):
        compiled = compile_transform(v2.Compose([v2.ToImage(), make(v2)]), "fast")
        assert compiled.tail is None and "as on PIL images" in compiled.explain()


def test_what_is_drawn_for_tensors_can_be_replayed_and_sent():
    jitter = v2.ColorJitter(0.4, 0.4, 0.4, 0.1)
    steps = [v2.RandomResizedCrop(20), v2.RandomHorizontalFlip(), jitter, v2.RandomGrayscale(0.5)]
    steps.append(v2.RandomRotation(9, BILINEAR, fill=None))
    transform = v2.Compose([v2.ToImage(), *steps])
    plan = compile_plan(transform)
    image = photo(np.random.default_rng(0), 50, 40)
    for index in range(5):
        operations = plan.draw(*image.size, index=index)
        assert plan.picture(image, operations).tobytes() == replay(image, operations).tobytes()
    assert plan_from_data(plan_to_data(plan.plan)) == plan.plan
