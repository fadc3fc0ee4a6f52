"""Compositions that make floats early are plans too, with the bits of torchvision on tensors."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.campaigns import examples
from support.float_operations import by_torch
from support.images import NORMALIZE, photo
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2

from fusionloader import Cache, DecodedCache, FusionLoader, compile_plan
from fusionloader.addons.inference import Preprocessor
from fusionloader.data.sources.datasets import compile_dataset
from fusionloader.data.sources.plan_source import PlanSource
from fusionloader.engine.delivery.level_rows import make_levels_plan
from fusionloader.transforms.executors.compiled_plan import CompiledPlan
from fusionloader.transforms.executors.device.split import split_plan
from fusionloader.transforms.executors.device.support import why_not
from fusionloader.transforms.executors.python import SampleKey, seed_generators
from fusionloader.transforms.plan.exchange import plan_from_data, plan_to_data
from fusionloader.transforms.plan.stages import TO_FLOATS, ImageKind
from fusionloader.transforms.plan.torchvision.conversions import is_conversion
from fusionloader.transforms.plan.transforms import compile_transform

BICUBIC, BILINEAR = InterpolationMode.BICUBIC, InterpolationMode.BILINEAR
FLOATS = [v1.ToTensor(), v1.Normalize(*NORMALIZE)]
SCALED = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
SHIFTED = [v1.ToTensor(), v1.Normalize([0.25] * 3, [1.0] * 3)]
ONE = [v1.ToTensor(), v1.Normalize(0.5, 0.25)]
LAST = v1.Normalize(*NORMALIZE)
NEGATED = v1.Normalize([float(torch.tensor(100) / 255)] * 3, [-1.0] * 3)  # level 100 is -0.0
# Each is the same for all draws; the second says whether stages work on floats.
WHOLE = {
    "tutorial": ([v1.ToTensor(), v1.Resize(20), v1.CenterCrop(16), LAST], True),
    "normalized first": ([*FLOATS, v1.Resize((20, 30)), v1.CenterCrop((40, 16))], True),
    "bicubic": ([v1.ToTensor(), v1.Resize((31, 17), BICUBIC)], True),
    "v2": ([*SCALED, v2.Resize(24), v2.CenterCrop(20), v2.Normalize(*NORMALIZE)], True),
    "twice": ([v1.ToTensor(), v2.Resize(30), LAST, v1.Resize((9, 40)), LAST], True),
    "after a crop": ([v1.CenterCrop(30), v1.ToTensor(), v1.Resize(50)], True),
    "after a flip": ([v1.ToTensor(), v1.RandomHorizontalFlip(1), v1.Resize((9, 12))], True),
    "after colors": ([v1.RandomInvert(1.0), v1.ToTensor(), v1.Resize((9, 12)), LAST], True),
    "a border of zeros": ([v1.ToTensor(), v1.Pad(3), v1.CenterCrop(20), LAST], False),
    "a border of ones": ([v1.ToTensor(), v1.Pad((1, 2), fill=1), LAST], False),
    "a border of no level": ([*FLOATS, v1.Pad((1, 2, 3, 4), fill=2)], True),
    "a larger middle": ([*FLOATS, v1.CenterCrop(90)], True),
    "reflected": ([v1.Resize((20, 30)), *FLOATS, v1.Pad(3, padding_mode="reflect")], False),
    "the edge": ([*FLOATS, v1.Pad(90, padding_mode="edge")], False),
    "a converted border": ([*SCALED, v2.Pad(2, fill={torch.Tensor: 1, "others": 1}), LAST], False),
    "a border of changed levels": (
        [*SHIFTED, v1.ConvertImageDtype(torch.uint8), v1.Pad(2, fill=100)],
        False,
    ),
    "grey": ([v1.Grayscale(), v1.ToTensor(), v1.Resize((9, 12)), v1.Normalize(0.5, 0.25)], True),
    "rounded": ([v1.PILToTensor(), v1.Resize((20, 30)), v1.CenterCrop(16)], False),
    "rounded bicubic": ([v1.PILToTensor(), v1.Resize((50, 70), BICUBIC)], False),
    "rounded, then floats": (
        [v1.PILToTensor(), v1.Resize((20, 30)), v1.ConvertImageDtype(torch.float32)],
        False,
    ),
    "rounded, then contrast": (
        [v2.ToImage(), v1.Resize((9, 18)), v2.ColorJitter(contrast=(10.0, 10.0))],
        False,
    ),
    "container": (
        [v1.ToTensor(), v1.RandomApply([v1.Resize((20, 30)), v1.CenterCrop(9)], 1.0)],
        True,
    ),
    "the same type": ([v1.ToTensor(), v1.Resize(9), v2.ToDtype(torch.float32), LAST], True),
    "erased": ([v1.ToTensor(), v1.Resize((9, 12)), v1.RandomErasing(0.0), LAST], True),
    "aliased": ([v1.ToTensor(), v1.Resize((60, 50), antialias=False), LAST], True),
    "aliased side": ([*SCALED, v2.Resize(9, antialias=None), v2.CenterCrop(7), LAST], True),
    "aliased along one side": (
        [v1.Resize((20, 30)), v1.ToTensor(), NEGATED, v1.Resize((20, 50), antialias=False)],
        True,
    ),
    "one aliased pixel": ([*FLOATS, v1.Resize((1, 1), antialias=False)], True),
    "turned": ([v1.ToTensor(), v1.RandomRotation((20, 20), fill=1), LAST], False),
    "normalized, then turned": ([*FLOATS, v1.RandomRotation((20, 20))], True),
    "turned between pixels": ([v1.ToTensor(), v1.RandomRotation((9, 9), BILINEAR), LAST], True),
    "a larger turn": (
        [*SCALED, v2.RandomRotation((50, 50), BILINEAR, True, fill=1), v2.Resize((9, 12)), LAST],
        True,
    ),
    "affine": (
        [*FLOATS, v2.RandomAffine((3, 3), None, (0.8, 0.8), (7, 7), BILINEAR, 2, (3, 8)), LAST],
        True,
    ),
    "grey, turned": (
        [v1.Grayscale(), *ONE, v1.RandomRotation((9, 9), BILINEAR), *ONE[1:], v1.Resize((9, 9))],
        True,
    ),
    "grey, turned last": ([v1.Grayscale(), *ONE, v2.RandomRotation((9, 9), BILINEAR, True)], True),
}
RANDOM = {
    "tutorial": [
        v1.ToTensor(),
        v1.Resize(40),
        v1.RandomCrop(32),
        v1.RandomHorizontalFlip(),
        v1.Normalize(*NORMALIZE),
    ],
    "resized crop": [v1.ToTensor(), v1.RandomResizedCrop(20), v1.RandomVerticalFlip(), LAST],
    "reflected": [
        v1.Resize((20, 30)),
        *FLOATS,
        v1.RandomCrop(8, padding=3, padding_mode="reflect"),
    ],
    "padded": [*FLOATS, v1.RandomCrop((30, 20), padding=4, pad_if_needed=True)],
    "v2": [*SCALED, v2.RandomResizedCrop(20), v2.RandomHorizontalFlip(), v2.Resize((9, 12))],
    "levels": [v1.PILToTensor(), v1.RandomResizedCrop(20), v1.ConvertImageDtype(torch.float32)],
}


def images(count=6):
    sizes = [(61, 47), (40, 90), (33, 33), (9, 70), (64, 30), (120, 100)]
    return [photo(np.random.default_rng(i), *sizes[i % len(sizes)]) for i in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    (root / "a").mkdir()
    for number, image in enumerate(images(9)):
        image.save(root / "a" / f"{number}.jpg", quality=92)
    return root


def bits(image):
    assert isinstance(image, torch.Tensor)
    image = image.as_subclass(torch.Tensor).contiguous()
    return image.dtype, image.shape, image.numpy().tobytes()


@pytest.mark.few(14)
@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_transform_has_the_bits_of_torchvision(name):
    steps, on_floats = WHOLE[name]
    transform = v1.Compose(steps)
    plan = compile_plan(transform)
    assert plan.tail is None, plan.explain()
    assert plan.plan.works_on_floats == on_floats
    assert plan_from_data(plan_to_data(plan.plan)) == plan.plan
    for image in images():
        assert bits(plan.apply(image, plan.draw(*image.size))) == bits(transform(image))


@pytest.mark.few(14)
@pytest.mark.parametrize("name", WHOLE)
def test_an_epoch_is_that_of_a_dataloader(folder, name):
    dataset = ImageFolder(str(folder), v1.Compose(WHOLE[name][0]))
    with FusionLoader(dataset, 1, num_workers=1) as loader:
        assert "python" not in loader.explain()
        for (ours, _), (theirs, _) in zip(loader, DataLoader(dataset, 1), strict=True):
            assert bits(ours) == bits(theirs)


def replayed(image, steps, operations):
    """What torchvision makes of the draws: those of windows stand for its own ``get_params``."""
    done = [operation for operation in operations if operation[0] not in ("to_floats", "normalize")]
    for step in steps:
        name = type(step).__name__
        if is_conversion(step):
            image = step(image)
        elif name in ("Resize", "RandomCrop", "RandomResizedCrop"):
            for _ in range(2 if name == "RandomResizedCrop" else 1):
                operation = done.pop(0)
                if operation[0] == "pad":
                    image = v1.functional.pad(image, list(operation[1:5]), padding_mode="reflect")
                    operation = done.pop(0)
                if operation[0] == "resize":
                    _, width, height, _ = operation
                    image = v1.functional.resize(image, [height, width], antialias=True)
                else:
                    image = by_torch(image, *operation)
        elif done and done[0][0] in ("hflip", "vflip"):
            flips = {"hflip": "RandomHorizontalFlip", "vflip": "RandomVerticalFlip"}
            if flips[done[0][0]] == name:
                image = by_torch(image, *done.pop(0))
    assert not done
    return image


@pytest.mark.few(3)
@pytest.mark.parametrize("name", RANDOM)
def test_random_windows_and_flips_have_the_bits_of_torchvision(folder, name):
    steps = RANDOM[name]
    dataset = ImageFolder(str(folder), v1.Compose(steps))
    plan = compile_plan(dataset.transform)
    assert plan.tail is None, plan.explain()
    with FusionLoader(dataset, 1, num_workers=2, seed=5) as loader:
        assert "python" not in loader.explain()
        for epoch in range(2):
            loader.set_epoch(epoch)
            for index, (batch, _) in enumerate(loader):
                image = dataset.loader(dataset.samples[index][0])
                operations = plan.draw(*image.size, seed=5, epoch=epoch, index=index)
                assert bits(batch[0]) == bits(replayed(image, steps, operations))


@pytest.mark.parametrize("cache", [Cache, DecodedCache])
def test_samples_of_cached_images_are_the_same(folder, cache):
    dataset = ImageFolder(str(folder), v1.Compose(RANDOM["tutorial"]))
    epochs = []
    for options in ({}, {"cache": cache("64MiB")}):
        with FusionLoader(dataset, 1, num_workers=1, seed=5, **options) as loader:
            epochs.append([bits(batch) for _ in range(2) for batch, _ in loader])
    assert epochs[0] == epochs[1]


def test_a_preprocessor_makes_the_floats_of_torchvision(folder):
    transform = v1.Compose(WHOLE["tutorial"][0])
    paths = sorted((folder / "a").iterdir())
    with Preprocessor(transform, num_workers=1) as prepare:
        made = prepare([path.read_bytes() for path in paths])
    for path, row in zip(paths, made, strict=True):
        assert bits(row) == bits(transform(Image.open(path)))


TAILS = {
    "posterize": (RANDOM["tutorial"][:4], [v2.RandomPosterize(3), LAST]),
    "unknown": (RANDOM["resized crop"], [v1.Lambda(lambda image: image + torch.rand(()))]),
    "another type": (RANDOM["resized crop"], [v1.ConvertImageDtype(torch.float16)]),
    "erased": (RANDOM["tutorial"], [v1.RandomErasing(1.0), LAST, v1.RandomVerticalFlip()]),
    "of other sizes": ([v1.ToTensor(), v1.Resize(20)], [v1.GaussianBlur(3)]),
}


@pytest.mark.parametrize("name", TAILS)
def test_what_follows_in_python_gets_the_tensor_of_torchvision(folder, name):
    steps, tail = TAILS[name]
    dataset = ImageFolder(str(folder), v1.Compose([*steps, *tail]))
    compiled = compile_dataset(dataset)
    assert compiled.tail.transforms == tail and compiled.plan.works_on_floats
    source = PlanSource(dataset, compiled)
    plan = compile_plan(v1.Compose(steps))
    with FusionLoader(dataset, 1, num_workers=1, seed=3) as loader:
        for index, (batch, _) in enumerate(loader):
            image = dataset.loader(dataset.samples[index][0])
            expected = replayed(image, steps, plan.draw(*image.size, seed=3, index=index))
            key = SampleKey(index, 3, 0, index, 0)
            seed_generators(key, source.seeding)
            expected = v1.Compose(tail)(expected)
            state = torch.get_rng_state()
            assert bits(batch[0]) == bits(expected)
            assert bits(source.load(key)[0]) == bits(expected)
            assert torch.equal(torch.get_rng_state(), state)


def test_a_tail_that_would_see_another_memory_format_gets_a_pil_image():
    compiled = compile_transform(v2.Compose([*SCALED, v2.Resize(20), v1.GaussianBlur(3)]))
    assert not compiled.plan.stages and len(compiled.tail.transforms) == 4
    kept = compile_transform(v2.Compose([*SCALED, v2.Resize((9, 9)), v2.CenterCrop(4)]))
    assert kept.tail is None


OTHERWISE = {
    "nearest": v1.Resize((9, 12), InterpolationMode.NEAREST),
    "aliased bicubic": v1.Resize((9, 12), BICUBIC, antialias=False),
    "a fill for PIL images": v1.Pad(2, fill=(1, 1, 1)),
    "half a fill": v1.Pad(2, fill=0.5),
    "a fill for some images": v2.Pad(2, fill={tv_tensors.Image: 1}),
    "one pixel wide": v1.Resize((9, 1)),
    "perhaps one pixel wide": v1.Resize(20, max_size=24),
    "posterize": v2.RandomPosterize(3),
    "equalize": v2.RandomEqualize(),
    "policy": v2.RandAugment(),
    "one of many": v1.RandomApply([v1.ColorJitter(0.5), v2.RandomPosterize(3)]),
    "a threshold of levels": v1.RandomSolarize(128),
    "a fill of no level": v1.RandomRotation(9, fill=0.5),
    "a bicubic rotation": v2.RandomRotation(9, BICUBIC),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_torch_does_otherwise_is_left_to_it(name):
    compiled = compile_transform(v1.Compose([v1.ToTensor(), OTHERWISE[name]]))
    assert len(compiled.tail.transforms) == 2 and not compiled.plan.works_on_floats
    compiled = compile_transform(v1.Compose([v1.ToTensor(), v1.Resize((20, 20)), OTHERWISE[name]]))
    assert compiled.tail.transforms == [OTHERWISE[name]] and compiled.plan.works_on_floats


def test_a_border_of_floats_is_a_constant():
    for step in (v1.RandomCrop(9, padding=2, padding_mode="reflect"), v2.Pad(2, 0, "edge")):
        assert compile_transform(v1.Compose([v1.Resize((9, 9)), *FLOATS, step])).tail is None
        compiled = compile_transform(v1.Compose([v1.ToTensor(), v1.Resize((20, 20)), step]))
        assert compiled.tail.transforms == [step]


REFUSED = {
    "a larger reflection": v1.Pad(40, padding_mode="reflect"),
    "a larger reflection of symmetry": v2.Pad((0, 34, 0, 0), padding_mode="symmetric"),
    "a fill for PIL images": v1.Pad(2, fill=(1, 2, 3), padding_mode="edge"),
    "a fill of several values": v2.Pad(2, fill=[1, 1, 1], padding_mode="reflect"),
    "a border of a crop": v1.RandomCrop(4, padding=33, padding_mode="reflect"),
}


@pytest.mark.parametrize("first", [[], [v1.Resize((33, 33))]])
@pytest.mark.parametrize("name", REFUSED)
def test_borders_that_torchvision_refuses_raise(name, first):
    image = images()[2]
    for converting in ([v1.PILToTensor()], FLOATS):
        transform = v1.Compose([*first, *converting, REFUSED[name]])
        plan = compile_plan(transform)
        with pytest.raises(Exception) as theirs:
            transform(image)
        with pytest.raises(theirs.type):
            plan.apply(image, plan.draw(*image.size))


WINDOW = [v1.ToTensor(), v1.Resize((20, 24)), v1.CenterCrop(16)]
SEEING = {
    "the type of an image": [*WINDOW[:2], v2.ToImage(), v1.Lambda(type)],
    "strides": [*WINDOW, v1.Lambda(lambda image: image.stride())],
    "strides of levels": [v1.PILToTensor(), v1.CenterCrop(16), v1.Lambda(lambda x: x.stride())],
    "strides in a container": [
        *WINDOW[:2],
        v1.RandomApply([v1.CenterCrop(16)], 1.0),
        v1.RandomHorizontalFlip(0.0),
        v1.RandomApply([v1.Lambda(lambda image: image.stride())], 1.0),
    ],
    "strides after Normalize": [*WINDOW, LAST, v1.Lambda(lambda image: image.stride())],
    "strides after Normalize in place": [
        *WINDOW,
        v1.Normalize(*NORMALIZE, inplace=True),
        v1.Lambda(lambda image: image.stride()),
    ],
}


@pytest.mark.parametrize("name", SEEING)
def test_code_that_follows_sees_the_tensor_of_torchvision(name):
    transform = v1.Compose(SEEING[name])
    plan = compile_plan(transform)
    image = images()[0]
    assert plan.apply(image, plan.draw(*image.size)) == transform(image)
    assert plan.plan.works_on_floats == (name != "strides of levels")


def test_a_type_for_images_alone_is_left_to_torchvision():
    types = {tv_tensors.Image: torch.float16, "others": None}
    steps = [*SCALED, v2.Resize((9, 12)), v2.ToDtype(types, scale=True)]
    plan = compile_plan(v2.Compose(steps))
    image = images()[0]
    assert bits(plan.apply(image, plan.draw(*image.size))) == bits(v2.Compose(steps)(image))


@pytest.mark.parametrize("steps", [[], [v2.Resize(20)]])
def test_normalizing_grey_images_to_three_channels_is_left_to_torchvision(steps):
    grey = ImageKind(channels=1)
    for order in ([*steps, v2.Normalize(*NORMALIZE)], [v2.Normalize(*NORMALIZE), *steps]):
        transform = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), *order])
        plan = CompiledPlan(compile_transform(transform, images=grey))
        image = images()[0].convert("L")
        assert bits(plan.apply(image, plan.draw(*image.size))) == bits(transform(image))


def test_erasing_comes_last():
    erasing = v1.RandomErasing(1.0, value=0.5)
    steps = [v1.ToTensor(), v1.Resize((20, 30)), erasing, LAST]
    plan = compile_plan(v1.Compose(steps))
    assert plan.tail is None and plan.plan.stages[0] == TO_FLOATS
    for index, image in enumerate(images()):
        operations = plan.draw(*image.size, index=index)
        _, x, y, width, height, *_ = operations[-1]
        made = v1.functional.erase(v1.Compose(steps[:2])(image), y, x, height, width, 0.5)
        assert bits(plan.apply(image, operations)) == bits(LAST(made))


def test_floats_are_made_by_cpu_workers_and_cross_as_floats():
    plan = compile_transform(v1.Compose([v1.ToTensor(), v1.Resize((20, 30))])).plan
    assert "work on floats" in why_not(plan, None)
    normalized = compile_transform(v1.Compose([v1.ToTensor(), v1.Resize((20, 30)), LAST])).plan
    assert "work on floats" in split_plan(normalized)
    assert "work on elements" in make_levels_plan(plan)
    rounded = compile_transform(v1.Compose([v1.PILToTensor(), v1.Resize((20, 30))])).plan
    assert "on tensors" in why_not(rounded, None)


def test_there_is_no_picture_of_floats():
    plan = compile_plan(v1.Compose([v1.ToTensor(), v1.Resize((20, 30))]))
    with pytest.raises(ValueError, match="no picture"):
        plan.picture(images()[0], plan.draw(61, 47))


@settings(max_examples=examples(15, 100), deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 5))
def test_a_window_of_a_file_has_the_bits_of_torchvision(height, width, number):
    file = io.BytesIO()
    images()[number].save(file, "PNG")
    transform = v1.Compose([v1.ToTensor(), v1.Resize(70), v1.CenterCrop((height, width))])

    class Encoded:
        def __init__(self):
            self.transform = transform

        def __len__(self):
            return 1

        def read_encoded(self, index):
            return file.getvalue(), 0

    dataset = Encoded()
    source = PlanSource(dataset, compile_dataset(dataset))
    assert bits(source.load(SampleKey(0, 0, 0, 0, 0))[0]) == bits(transform(images()[number]))
