"""Changes of colors after the conversion have the bits of torchvision on float32 tensors."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from support.campaigns import DRAWS
from support.distributions import assert_same_distribution, flat
from support.images import NORMALIZE, photo
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import functional as older
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as newer

from fusionloader import compile_plan
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.executors.replay import replay
from fusionloader.transforms.plan.exchange import plan_from_data, plan_to_data
from fusionloader.transforms.plan.torchvision import on_tensors
from fusionloader.transforms.plan.transforms import compile_transform

pytestmark = pytest.mark.usefixtures("one_thread")

CONVERSIONS = {
    "v1": [v1.ToTensor()],
    "v2": [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)],
    "levels as floats": [v2.PILToTensor(), v2.ToDtype(torch.float32)],
    "normalized": [v1.ToTensor(), v1.Normalize(*NORMALIZE)],
}


BICUBIC, BILINEAR = v1.InterpolationMode.BICUBIC, v1.InterpolationMode.BILINEAR
# For either module; those of v1 come with those of v1 alone.
STEPS = {
    "contrast": lambda module: module.ColorJitter(contrast=(1.7, 1.7)),
    "jitter": lambda module: module.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "brightness": lambda module: module.ColorJitter(brightness=(0.2, 3.0)),
    "grayscale": lambda module: module.RandomGrayscale(0.5),
    "three times": lambda module: module.Grayscale(3),
    "sharpness": lambda module: module.RandomAdjustSharpness(1.9, 0.8),
    "solarize": lambda module: module.RandomSolarize(0.3, 0.8),
    "invert": lambda module: module.RandomInvert(),
    "autocontrast": lambda module: module.RandomAutocontrast(),
    "normalize": lambda module: module.Compose(
        [module.RandomInvert(1.0), module.Normalize(*NORMALIZE)]
    ),
    "window": lambda module: module.RandomCrop((7, 5)),
    "rows": lambda module: module.RandomCrop((9, 13)),
    "larger": lambda module: module.CenterCrop((22, 8)),
    "resize": lambda module: module.Resize((10, 13), BICUBIC),
    "small": lambda module: module.Resize((2, 30)),
    "aliased": lambda module: module.Resize((17, 8), antialias=False),
    "aliased crop": lambda module: module.RandomResizedCrop((70, 60), antialias=False),
    "flip": lambda module: module.RandomHorizontalFlip(),
    "border": lambda module: module.Pad(1),
    "sometimes": lambda module: module.RandomApply([module.ColorJitter(0.3, 0.3, 0.3, 0.2)]),
    "distort": lambda module: v2.RandomPhotometricDistort(),
    "blur": lambda module: v2.GaussianBlur((5, 3), (0.05, 5.0)),
    "rotation": lambda module: module.RandomRotation(40),
    "bilinear rotation": lambda module: module.RandomRotation(40, BILINEAR, fill=(9, 8, 7)),
    "larger rotation": lambda module: module.RandomRotation(40, BILINEAR, expand=True),
    "affine": lambda module: module.RandomAffine(10, (0.2, 0.1), (0.8, 1.2), 5, BILINEAR),
    "perspective": lambda module: module.RandomPerspective(0.7, 0.9, fill=20),
}
HUES = ["jitter", "sometimes", "distort"]
OPERATIONS = {
    "hflip": newer.horizontal_flip,
    "normalize": lambda image, *by: newer.normalize(image, *map(list, by)),
    "pad": lambda image, *sides: newer.pad(image, list(sides[:4]), 0),
    "channels": lambda image, *channels: newer.permute_channels(image, list(channels)),
}


def in_torch(image, module, name, *arguments):
    """A drawn operation by torchvision, wherever the tensor lies."""
    if name in ("affine", "perspective"):  # tests/plan/test_tensor_warps.py
        return on_tensors.run_on_tensor(image, (name, *arguments))
    if str(arguments[-1:]).startswith("('torch_v"):
        arguments = arguments[:-1]
    if name == "crop":
        left, top, width, height, _ = arguments
        return module.crop(image, top, left, height, width)
    if name == "resize":
        width, height, filter = arguments
        mode, antialias = v1.InterpolationMode(filter.split("_")[-1]), "aliased" not in filter
        return module.resize(image, [height, width], mode, antialias=antialias)
    if name == "blur":
        return newer.gaussian_blur(image, arguments[:2], arguments[2:])
    if name == "grayscale":
        return module.rgb_to_grayscale(image, 3)
    function = OPERATIONS.get(name) or getattr(module, name, None)
    return (function or getattr(module, f"adjust_{name}"))(image, *arguments)


def bits(image):
    image = image.as_subclass(torch.Tensor).contiguous()
    return image.dtype, image.shape, image.numpy().tobytes()


def assert_is_torchvision_s(steps, conversion, image, module, index=0):
    """Of the drawn operations; returns how many there were."""
    plan = compile_plan(v2.Compose([*CONVERSIONS[conversion], *steps]))
    assert plan.tail is None, plan.explain()
    assert plan_from_data(plan_to_data(plan.plan)) == plan.plan
    try:
        operations = plan.draw(*image.size, index=index)
    except ValueError:  # a crop that is larger than the image
        return 0
    expected = v2.Compose(CONVERSIONS[conversion])(image)
    for operation in operations:
        if operation[0] != "to_floats":
            expected = in_torch(expected, module, *operation)
    assert bits(plan.apply(image, operations)) == bits(expected), operations
    return len(operations)


@pytest.mark.parametrize("conversion", CONVERSIONS)
@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.few(45)
def test_each_transform_has_the_bits_of_torchvision(name, module, conversion):
    functional = older if module is v1 and name != "distort" else newer
    for index in range(4):
        width, height = map(int, np.random.default_rng(index).integers(13, 70, 2))
        image = photo(np.random.default_rng(index), width, height)
        if index == 3:
            image = image.point(lambda level: level // 64 * 60)  # flat parts
        step = STEPS[name](module)
        assert_is_torchvision_s([step], conversion, image, functional, index)


@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize("jitter", HUES)
def test_hues_behind_a_perspective_are_left_to_torchvision(jitter, module):
    """Which divides by zero at some pixels: torch goes on with what is no number."""
    chain = [STEPS["perspective"](module), STEPS[jitter](module)]
    for steps in (chain, [module.RandomOrder(chain)]):
        assert compile_plan(v2.Compose([*CONVERSIONS["v2"], *steps])).tail


@pytest.mark.parametrize("conversion", ["levels as floats", "normalized"])
def test_hues_of_floats_beyond_one_are_turned_once(conversion):
    """The first one may make what is no number: the largest channel 0, another one below."""
    once = [*CONVERSIONS[conversion], v2.RandomSolarize(0.3, 1.0), v2.RandomPhotometricDistort()]
    assert not compile_plan(v2.Compose(once)).tail
    assert compile_plan(v2.Compose([*once, STEPS["jitter"](v2)])).tail
    assert compile_plan(v2.Compose([*once[:-1], v2.RandomOrder(once[-1:] * 2)])).tail
    assert not compile_plan(v2.Compose([*CONVERSIONS["v2"], *once[-1:] * 2])).tail


@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6),
    st.sampled_from(sorted(CONVERSIONS)),
    st.sampled_from([v1, v2]),
    st.tuples(st.integers(9, 20), st.integers(9, 20)),
    st.integers(0, 99),
)
@example(["rows", "resize", "contrast"], "v2", v2, (20, 13), 0)
@example(["window", "flip", "resize", "contrast"], "v2", v2, (19, 17), 0)
@example(["jitter", "small", "jitter"], "v2", v2, (19, 17), 3)
def test_a_chain_has_the_bits_of_torchvision(names, conversion, module, sides, seed):
    levels = np.random.default_rng(seed).integers(0, 256, (*sides, 3), np.uint8)
    if module is v1:
        names = [name for name in names if name != "distort"]
    if "perspective" in names:
        first = names.index("perspective")
        names[first:] = [name for name in names[first:] if name not in HUES]
    if "normalize" in names or conversion in ("levels as floats", "normalized"):
        turned = [place for place, name in enumerate(names) if name in HUES]
        names = [name for place, name in enumerate(names) if place not in turned[1:]]
    steps = [STEPS[name](module) for name in names]
    functional = older if module is v1 else newer
    with np.errstate(all="ignore"):
        assert_is_torchvision_s(steps, conversion, Image.fromarray(levels), functional, seed)


@pytest.mark.parametrize("size", [(1, 1), (2, 9), (224, 224), (300, 200)])
def test_images_of_any_size_have_the_bits_of_torchvision(size):
    image = photo(np.random.default_rng(0), *size)
    for module, functional in ((v1, older), (v2, newer)):
        steps = [STEPS[name](module) for name in ("jitter", "sharpness", "normalize")]
        for conversion in CONVERSIONS:
            assert_is_torchvision_s(steps, conversion, image, functional, 1)


def test_windows_of_levels_and_floats_may_lie_otherwise():
    for before in ([v2.CenterCrop((9, 13))], [v2.RandomHorizontalFlip(1.0)], [v2.Pad(1)]):
        for after in ([], [v2.Resize((11, 9))]):
            steps = [
                *(v2.ToImage(), *before, v2.ToDtype(torch.float32, scale=True), *after),
                *(v2.ColorJitter(contrast=(1.7, 1.7)), v2.Normalize(*NORMALIZE)),
            ]
            for index in range(5):
                image = photo(np.random.default_rng(index), 17 + index, 15)
                plan = compile_plan(v2.Compose(steps))
                assert plan.tail is None
                made = plan.apply(image, plan.draw(*image.size))
                assert bits(made) == bits(v2.Compose(steps)(image))


CONTRAST = v2.ColorJitter(contrast=(1.7, 1.7))


def assert_made_as_by_torchvision(steps, sizes=((20, 31), (19, 19))):
    """Of transforms without random numbers; returns the last plan."""
    for height, width in sizes:
        image = photo(np.random.default_rng(height), width, height)
        plan = compile_plan(v2.Compose(steps))
        made = plan.apply(image, plan.draw(width, height))
        assert bits(made) == bits(v2.Compose(steps)(image)), plan.explain()
    return plan


@pytest.mark.parametrize("normalizing", [None, False, True])
def test_a_window_of_floats_is_resized_to_the_layout_of_torch(normalizing):
    steps = [*CONVERSIONS["v2"], v2.CenterCrop((9, 13)), v2.Resize((11, 7)), CONTRAST]
    if normalizing is not None:
        steps.insert(3, v2.Normalize(*NORMALIZE, inplace=normalizing))
    assert assert_made_as_by_torchvision(steps).tail is None


@pytest.mark.few(8)
@pytest.mark.parametrize("filter", [v1.InterpolationMode.NEAREST, BILINEAR])
@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("angle", [0, 90, 180, 270, 360])
def test_turns_without_arithmetic_keep_or_transpose_how_a_tensor_lies(angle, expand, filter):
    turn = v2.RandomRotation((angle, angle), filter, expand)
    for before in ([], [v2.CenterCrop((9, 13))]):
        steps = [v2.ToImage(), *before, turn]
        assert_made_as_by_torchvision([*steps, CONTRAST])
        plan = assert_made_as_by_torchvision([*steps, *CONVERSIONS["v2"][1:], CONTRAST])
        assert (plan.tail is None) == (angle % 180 == 0)
        steps = [*CONVERSIONS["v2"], *before, turn]
        plan = assert_made_as_by_torchvision(steps)
        assert plan.tail is None
        plan = assert_made_as_by_torchvision([*steps, CONTRAST])
        assert (plan.tail is None) == (angle % 180 == 0)


@pytest.mark.parametrize("name", ["Normalize", "RandomErasing"])
def test_changes_of_a_grey_tensor_in_place_are_left_to_torch(name):
    last = {
        "Normalize": v2.Normalize(*NORMALIZE, inplace=True),
        "RandomErasing": v2.RandomErasing(1.0, inplace=True),
    }[name]
    plan = compile_plan(v2.Compose([*CONVERSIONS["v2"], v2.Grayscale(3), last]))
    image = photo(np.random.default_rng(0), 20, 20)
    with pytest.raises(RuntimeError, match="more than one element"):
        plan.apply(image, plan.draw(*image.size))


def test_v1_resizes_to_another_layout_than_v2():
    steps = [*CONVERSIONS["v2"], v1.Resize((9, 11)), v2.ColorJitter(contrast=0.5)]
    assert compile_plan(v2.Compose(steps)).tail is not None
    assert compile_plan(v2.Compose([v1.ToTensor(), *steps[2:]])).tail is None


def test_code_that_follows_a_turned_hue_sees_the_strides_of_torchvision():
    hue = v1.ColorJitter(hue=(0.1, 0.1))
    for steps in ([], [v1.Normalize(*NORMALIZE)]):
        transform = v1.Compose([v1.ToTensor(), v1.Resize((9, 11)), hue, *steps, v1.Lambda(strides)])
        plan = compile_plan(transform)
        image = photo(np.random.default_rng(0), 30, 20)
        assert plan.apply(image, plan.draw(*image.size)) == transform(image)


def strides(image):
    return image.stride()


def test_colors_and_aliased_floats_of_one_channel_are_left_to_torchvision():
    for step in (v1.ColorJitter(0.5), v1.Resize(9, antialias=False)):
        compiled = compile_transform(v1.Compose([v1.Grayscale(), v1.ToTensor(), step]))
        assert len(compiled.tail.transforms) == 2


def test_a_color_of_floats_that_does_not_exist_is_an_error():
    plan = compile_plan(v1.Compose([v1.ToTensor(), v1.ColorJitter(0.5)]))
    image = photo(np.random.default_rng(0), 8, 8)
    for operation in (("hue", 0.6, "torch_v2"), ("contrast", 1e9, "torch_v1"), ("equalize",)):
        with pytest.raises(ValueError, match="hue factor|out of range|works on levels"):
            plan.apply(image, [("to_floats", "planar"), operation])


@pytest.mark.parametrize("height", [1, 2])
def test_the_mean_of_few_floats_is_that_of_torch(height):
    contrast = v2.ColorJitter(contrast=(1.7, 1.7))
    for width in range(1, 10):
        for seed in range(5):
            image = photo(np.random.default_rng(seed), width, height)
            assert_is_torchvision_s([contrast], "v2", image, newer)


@pytest.mark.parametrize("module", [v1, v2])
def test_brightness_of_no_light_has_the_signs_of_torchvision(module):
    black = module.ColorJitter(brightness=(0.0, 0.0))
    functional = older if module is v1 else newer
    image = photo(np.random.default_rng(0), 30, 20)
    assert_is_torchvision_s([black], "normalized", image, functional)


@pytest.mark.parametrize("module", [v1, v2])
def test_numbers_that_are_too_large_for_native_floats_are_left_to_torchvision(module):
    image = photo(np.random.default_rng(0), 30, 20)
    hue = module.ColorJitter(hue=(0.2, 0.2))
    invert = module.RandomInvert(1.0)
    for step in (
        [module.ColorJitter(brightness=(5e6, 5e6))],
        [module.RandomAdjustSharpness(2e6, 1.0)],
        [v2.RandomPhotometricDistort(brightness=(0, 5e6))],
        [module.Normalize([0.5] * 3, [1e-39] * 3), hue],
        [invert, module.Normalize([0.5] * 3, [1e-39] * 3), hue],
    ):
        transform = v2.Compose([*CONVERSIONS["v2"], *step])
        plan = compile_plan(transform)
        assert plan.tail is not None, step
        if not isinstance(step[0], v2.RandomPhotometricDistort):
            made = plan.apply(image, plan.draw(*image.size))
            assert torch.equal(made.isnan(), transform(image).isnan())
            assert torch.equal(made.nan_to_num(), transform(image).nan_to_num())


def test_hue_of_floats_that_are_too_large_is_an_error():
    hue = v2.ColorJitter(hue=(0.2, 0.2))
    plan = compile_plan(v2.Compose([*CONVERSIONS["v2"], v2.RandomInvert(1.0), hue]))
    image = photo(np.random.default_rng(0), 30, 20)
    operations = plan.draw(*image.size)
    large = ("normalize", (0.5, 0.5, 0.5), (1e-39, 1e-39, 1e-39))
    with pytest.raises(ValueError, match="beyond 1e38"):
        plan.apply(image, [operations[0], large, *operations[1:]])


@pytest.mark.parametrize("setting", ["precision", "convolutions"])
def test_a_setting_that_changes_sums_is_tried_again(setting):
    steps = [v2.RandomAdjustSharpness(1.7, 1.0)], [v2.RandomRotation((13, 13), fill=9)]
    before = [[v2.ToImage()], CONVERSIONS["v2"]][setting == "convolutions"]
    transform = v2.Compose([*before, *steps[setting == "precision"]])
    image = photo(np.random.default_rng(0), 71, 53)
    compile_plan(transform)
    precision = torch.get_float32_matmul_precision()
    try:
        if setting == "precision":
            torch.set_float32_matmul_precision("medium")
        else:
            torch._C._set_mkldnn_enabled(False)
        plan = compile_plan(transform)
        assert bits(plan.apply(image, plan.draw(*image.size))) == bits(transform(image))
    finally:
        torch.set_float32_matmul_precision(precision)
        torch._C._set_mkldnn_enabled(True)


@pytest.mark.parametrize("name", ["contrast", "hue", "invert"])
def test_a_difference_in_one_bit_is_noticed(name, monkeypatch):
    original = on_tensors.run_on_tensor

    def other(*arguments, **named):
        made = original(*arguments, **named).clone()
        made.view(-1)[-1:].view(torch.uint8)[0] ^= 1
        return made

    assert on_tensors._is_on_floats.__wrapped__(name, "torch_v2")
    monkeypatch.setattr(on_tensors, "run_on_tensor", other)
    assert not on_tensors._is_on_floats.__wrapped__(name, "torch_v2")


DISTORTIONS = {"pil": [], "levels": [v2.ToImage()], "floats": CONVERSIONS["v2"]}


@pytest.mark.parametrize("name", DISTORTIONS)
def test_a_photometric_distortion_has_the_pixels_of_torchvision(name):
    plan = compile_plan(v2.Compose([*DISTORTIONS[name], v2.RandomPhotometricDistort()]))
    assert plan.tail is None
    for index in range(12):
        image = photo(np.random.default_rng(index), 30 + index, 23)
        operations = plan.draw(*image.size, index=index)
        made = plan.apply(image, operations)
        if name == "pil":
            assert made.tobytes() == replay(image, operations).tobytes()
            continue
        expected = v2.Compose(DISTORTIONS[name])(image)
        for operation in operations:
            if operation[0] != "to_floats":
                expected = in_torch(expected, newer, *operation)
        if name == "levels":
            made = newer.to_image(made)
        assert bits(made) == bits(expected)


def test_a_photometric_distortion_is_drawn_as_by_torchvision(monkeypatch):
    step = v2.RandomPhotometricDistort((0.5, 1.1), (0.7, 1.5), (0.2, 1.0), (-0.2, 0.4), 0.4)
    executor = make_executor(compile_transform(step).plan)
    ours = [[flat(op) for op in executor.draw(0, 0, index, 0, 9, 9)] for index in range(3 * DRAWS)]
    recorded = []

    def record(function, image, permutation=(), **factor):
        name = function.__name__.removeprefix("adjust_").replace("permute_", "")
        recorded[-1].append((name, *factor.values(), *map(int, permutation)))
        return image

    monkeypatch.setattr(step, "_call_kernel", record)
    torch.manual_seed(1)
    for _ in range(DRAWS):
        recorded.append([])
        step(tv_tensors.Image(torch.zeros(3, 2, 2)))
    assert_same_distribution(ours, recorded)


@pytest.mark.parametrize("ranges", [{"brightness": (-0.1, 1)}, {"hue": (-0.6, 0)}, {"p": None}])
def test_distortions_that_torchvision_may_refuse_are_left_to_it(ranges):
    compiled = compile_transform(v2.RandomPhotometricDistort(**ranges))
    assert compiled.tail is not None


def test_blurs_that_torch_makes_otherwise_are_left_to_it(monkeypatch):
    monkeypatch.setattr(on_tensors, "_blurs", lambda *_: False)
    for first in ([v2.ToImage()], CONVERSIONS["v2"]):
        compiled = compile_transform(v2.Compose([*first, v2.GaussianBlur(3)]))
        assert compiled.tail is not None and "rounds otherwise" in compiled.explain()
