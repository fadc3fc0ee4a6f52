"""Augmentations compiled: what is drawn is what torchvision draws, pixels are Pillow's."""

import numpy as np
import pytest
import torch
from PIL import Image
from support.images import photo
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

from fusionloader import FusionLoader
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.executors.replay import replay
from fusionloader.transforms.plan.transforms import compile_transform

BILINEAR, BICUBIC = InterpolationMode.BILINEAR, InterpolationMode.BICUBIC
FILL = (12, 200, 77)
GREY_TOO = {
    "randaugment": v1.RandAugment(),
    "randaugment v2": v2.RandAugment(3, 15, interpolation=BILINEAR),
    "trivial": v1.TrivialAugmentWide(),
    "trivial v2": v2.TrivialAugmentWide(interpolation=BICUBIC),
    "imagenet": v1.AutoAugment(),
    "cifar10": v1.AutoAugment(v1.AutoAugmentPolicy.CIFAR10, BILINEAR),
    "svhn v2": v2.AutoAugment(v1.AutoAugmentPolicy.SVHN),
    "augmix": v1.AugMix(),
    "augmix v2": v2.AugMix(all_ops=False, chain_depth=2),
    "brightness": v1.ColorJitter(0.4, 0.4),
    "rotation": v1.RandomRotation(40),
    "expanding rotation": v1.RandomRotation((80, 100), BILINEAR, expand=True),
    "rotation about a point": v2.RandomRotation(30, center=[3, 5]),
    "affine": v1.RandomAffine(20, (0.2, 0.1), (0.7, 1.4), 10),
    "affine v2": v2.RandomAffine((5, 9), shear=(-5, 5, 3, 8), interpolation=BICUBIC),
    "perspective": v1.RandomPerspective(p=1.0),
    "grayscale": v1.RandomGrayscale(0.5),
    "invert": v1.RandomInvert(),
    "posterize": v2.RandomPosterize(3),
    "solarize": v1.RandomSolarize(100.5),
    "sharpness": v2.RandomAdjustSharpness(2.5),
    "autocontrast": v1.RandomAutocontrast(),
    "equalize": v1.RandomEqualize(1.0),
    "pad": v1.Pad((1, 2, 3, 4), 9),
    "reflect": v2.Pad([5], padding_mode="reflect"),
    "reflected crop": v1.RandomCrop((30, 8), padding=4, padding_mode="reflect"),
    "crop of the edge": v2.RandomCrop(9, padding=(2, 0, 3, 5), padding_mode="edge"),
    "apply": v1.RandomApply([v1.ColorJitter(0.1, 0.2), v1.RandomRotation(5)], 0.5),
    "choice": v1.RandomChoice([v1.RandomInvert(1.0), v1.Pad(3)], [1, 3]),
    "order": v2.RandomOrder([v2.RandomEqualize(1.0), v2.RandomRotation(20), v2.Pad(2)]),
}
COLOR = {
    "jitter": v1.ColorJitter(0.4, 0.4, 0.4, 0.2),
    "jitter v2": v2.ColorJitter(saturation=(0, 3), hue=0.5),
    "filled rotation": v1.RandomRotation(40, fill=FILL),
    "filled perspective": v2.RandomPerspective(0.8, 1.0, fill=list(FILL)),
    "filled pad": v1.Pad(4, FILL, "constant"),
    "filled policy": v1.RandAugment(fill=list(FILL)),
    "simclr": v1.Compose(
        [
            v1.RandomResizedCrop(40),
            v1.RandomHorizontalFlip(),
            v1.RandomApply([v1.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8),
            v1.RandomGrayscale(0.2),
        ]
    ),
    "before the crop": v1.Compose([v1.RandAugment(), v1.RandomResizedCrop(24), v1.RandAugment()]),
    "between flips": v1.Compose(
        [v1.RandomHorizontalFlip(), v1.RandomRotation(9), v1.RandomVerticalFlip(), v1.Resize(30)]
    ),
}
GENERATOR = np.random.default_rng(5)
IMAGES = {
    "photo": photo(GENERATOR, 61, 47),
    "noise": Image.fromarray(GENERATOR.integers(0, 256, (33, 50, 3), np.uint8)),
    "narrow": Image.fromarray(GENERATOR.integers(0, 256, (40, 9, 3), np.uint8)),
}


def assert_pixels_are_those_of_the_replay(transform, image, draws=40):
    compiled = compile_transform(transform)
    if image.mode == "L":
        from fusionloader.transforms.plan.stages import ImageKind

        compiled = compile_transform(transform, images=ImageKind(1))
    assert compiled.tail is None, compiled.notes
    executor = make_executor(compiled.plan)
    pixels = np.asarray(image).reshape(image.height, image.width, -1)
    for index in range(draws):
        operations = executor.draw(7, 0, index, 0, *image.size)
        result, (height, width) = executor.pixels_with(pixels, operations)
        expected = replay(image, operations)
        assert expected.size == (width, height), operations
        ours = np.frombuffer(result, np.uint8).reshape(height, width, -1)
        theirs = np.asarray(expected).reshape(height, width, -1)
        assert np.array_equal(ours, theirs), (operations, np.abs(ours - theirs.astype(int)).max())
        assert executor.pixels_of_pixels(pixels, 7, 0, index, 0) == (result, (height, width))


def assert_batches_are_those_of_the_replay(dataset, convert):
    """A loader's, whose transform is compiled whole; ``convert`` is what makes tensors in it."""
    compiled = compile_transform(dataset.transform)
    assert compiled.tail is None
    executor = make_executor(compiled.plan)
    with FusionLoader(dataset, 8, num_workers=2, seed=6) as loader:
        assert "python" not in loader.explain()
        batches = torch.cat([images.clone() for images, _ in loader])
    for index in range(len(dataset)):
        image = dataset.loader(dataset.samples[index][0])
        operations = executor.draw(6, 0, index, 0, *image.size)
        assert torch.equal(convert(replay(image, operations)), batches[index])


@pytest.mark.few(50)
@pytest.mark.parametrize("name", [*GREY_TOO, *COLOR])
@pytest.mark.parametrize("image", IMAGES)
def test_pixels_are_those_of_torchvision_on_pillow_images(name, image):
    assert_pixels_are_those_of_the_replay({**GREY_TOO, **COLOR}[name], IMAGES[image])


@pytest.mark.parametrize("name", GREY_TOO)
def test_grey_pixels_are_those_of_torchvision_on_pillow_images(name):
    assert_pixels_are_those_of_the_replay(GREY_TOO[name], IMAGES["photo"].convert("L"), draws=20)


def test_a_grey_result_of_color_images_has_one_channel():
    transform = v1.Compose([v1.Resize((20, 30)), v1.Grayscale(), v1.ToTensor()])
    plan = compile_transform(transform).plan
    image = IMAGES["photo"]
    out = np.empty((1, 20, 30), np.float32)
    make_executor(plan).run_pixels(np.asarray(image), 0, 0, 0, 0, out)
    assert torch.equal(torch.from_numpy(out), transform(image))
