"""Which transforms are compiled, and that the compiled ones do what torchvision does."""

import numpy as np
import pytest
import torch
from support.batches import same_batches
from support.images import NORMALIZE, photo
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2

from fusionloader import FusionLoader
from fusionloader.data.sources.datasets import compile_dataset
from fusionloader.transforms.plan.transforms import compile_transform

DETERMINISTIC = {
    "eval": [v1.Resize(40), v1.CenterCrop(32), v1.ToTensor(), v1.Normalize(*NORMALIZE)],
    "bicubic": [v1.Resize((30, 50), InterpolationMode.BICUBIC), v1.ToTensor()],
    "lanczos": [v1.Resize([24, 24], InterpolationMode.LANCZOS), v1.PILToTensor()],
    "max_size": [v1.Resize(40, max_size=90), v1.CenterCrop((20, 28)), v1.ToTensor()],
    "padded": [v1.Resize(20), v1.CenterCrop(64), v1.ToTensor()],
    "always flipped": [
        v1.Resize((32, 32)),
        v1.RandomHorizontalFlip(1.0),
        v1.RandomVerticalFlip(1.0),
        v1.ToTensor(),
    ],
    "half": [v1.Resize((32, 32)), v1.PILToTensor(), v1.ConvertImageDtype(torch.float16)],
    "uint8": [v1.Resize((32, 32)), v1.PILToTensor()],
    "nested": [v1.Compose([v1.Resize(40), v1.Compose([v1.CenterCrop(32)])]), v1.ToTensor()],
    "v2": [
        v2.Resize(40),
        v2.CenterCrop(32),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(*NORMALIZE),
    ],
    "v2 flip after": [
        v2.Resize((32, 32)),
        v2.ToImage(),
        v2.RandomHorizontalFlip(1.0),
        v2.ToDtype(torch.float32, scale=True),
    ],
    "v2 unscaled": [v2.Resize((32, 32)), v2.ToImage(), v2.ToDtype(torch.float32)],
}


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_a_compiled_transform_is_bit_identical_to_torchvision(image_folder, name):
    compose = v2.Compose if name.startswith("v2") else v1.Compose
    dataset = ImageFolder(str(image_folder), compose(DETERMINISTIC[name]))
    assert compile_dataset(dataset).complete
    assert same_batches(DataLoader(dataset, 8), FusionLoader(dataset, 8, num_workers=1))


@pytest.mark.parametrize("steps", [[v1.Resize(40), v1.ToTensor()], [v1.ToTensor()]], ids=repr)
def test_results_of_different_sizes_are_bit_identical_too(image_folder, steps):
    dataset = ImageFolder(str(image_folder), v1.Compose(steps))
    ours = FusionLoader(dataset, 1, num_workers=1)
    assert "python" not in ours.explain()
    assert same_batches(DataLoader(dataset, 1), ours)


class MyFlip(v1.RandomHorizontalFlip):
    def forward(self, image):
        return image


@pytest.mark.parametrize(
    "step",
    [
        MyFlip(),
        v1.RandomRotation(10, fill=1.5),
        v1.RandomApply([v1.Lambda(lambda image: image)], 0.5),
        v1.Lambda(lambda image: image),
        v1.Resize(40, InterpolationMode.NEAREST),
        v1.RandomCrop(32, padding=4, padding_mode="reflect"),
        v1.RandAugment(interpolation=InterpolationMode.NEAREST_EXACT),
        v1.RandomCrop(32, padding=4, fill=(1.5, 2, 3)),
    ],
    ids=repr,
)
def test_what_is_not_known_exactly_stays_in_python(step):
    compiled = compile_transform(v1.Compose([v1.Resize((64, 64)), step, v1.ToTensor()]))
    assert len(compiled.plan.stages) == 1 and compiled.plan.convert is None
    assert [bool(note.why) for note in compiled.notes] == [False, True, True]
    image = photo(np.random.default_rng(0), 64, 64)
    assert compiled.tail(image).shape[0] == 3


def test_a_method_put_on_an_instance_is_not_overlooked():
    flip = v1.RandomHorizontalFlip()
    flip.forward = lambda image: image
    assert compile_transform(v1.Compose([flip, v1.ToTensor()])).tail is not None


def test_the_tail_gets_the_kind_of_image_it_would_have_had():
    steps = [v1.Resize((32, 32)), v1.ToTensor(), v1.Lambda(lambda tensor: tensor + 1)]
    compiled = compile_transform(v1.Compose(steps))
    assert compiled.plan.convert is None
    assert compiled.tail(photo(np.random.default_rng(0), 32, 32)).dtype == torch.float32


@pytest.mark.parametrize(
    "step",
    [v2.Resize(40), v2.RandAugment(), v2.ColorJitter(0.1), v2.GaussianBlur(3), v2.Pad(2)],
    ids=repr,
)
def test_what_works_on_floats_stays_in_python(step):
    convert = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    compiled = compile_transform(v2.Compose([v2.Resize((50, 50)), *convert, step]))
    assert len(compiled.plan.stages) == 1 and len(compiled.tail.transforms) == 3


def test_compiling_draws_nothing_and_changes_nothing():
    transform = v1.Compose([v1.RandomResizedCrop(32), v1.ToTensor(), v1.Normalize(*NORMALIZE)])
    before, text = torch.get_rng_state(), repr(transform)
    compile_transform(transform)
    assert torch.equal(before, torch.get_rng_state()) and repr(transform) == text


class Own(ImageFolder):
    def __getitem__(self, index):
        return torch.zeros(3), 0


def test_folders_with_a_method_or_loader_of_their_own_are_not_compiled(image_folder):
    transform = v1.Compose([v1.Resize((32, 32)), v1.ToTensor()])
    assert compile_dataset(Own(str(image_folder), transform)).plan is None
    loader = ImageFolder(str(image_folder), transform, loader=lambda path: None)
    assert "a custom loader" in compile_dataset(loader).explain()
    assert compile_dataset(ImageFolder(str(image_folder))).plan is None


class Encoded:
    """The protocol that any dataset may have."""

    def __init__(self, paths, transform):
        self.paths = paths
        self.transform = transform

    def __len__(self):
        return len(self.paths)

    def read_encoded(self, index):
        with open(self.paths[index], "rb") as file:
            return file.read(), {"index": index}


def test_encoded_datasets_are_compiled(image_folder):
    transform = v1.Compose(DETERMINISTIC["eval"])
    folder = ImageFolder(str(image_folder), transform)
    encoded = Encoded([path for path, _ in folder.samples], transform)
    loader = FusionLoader(encoded, 8, num_workers=2)
    for (images, targets), (expected, _) in zip(loader, DataLoader(folder, 8), strict=True):
        assert torch.equal(images, expected)
        assert set(targets) == {"index"}


@pytest.mark.parametrize(
    "steps",
    [
        [
            v1.PILToTensor(),
            v1.ConvertImageDtype(torch.float32),
            v1.Normalize([0.25] * 3, [1.0] * 3),
        ],
        [v1.ToTensor(), v1.Normalize([-0.2] * 3, [2.0] * 3)],
    ],
    ids=["shifted", "scaled"],
)
@pytest.mark.parametrize("last", [v1.RandomInvert(1.0), v1.Pad(2, fill=100)], ids=repr)
def test_levels_that_were_changed_are_not_those_of_the_image(image_folder, steps, last):
    transform = [v1.Resize((20, 20)), *steps, v1.ConvertImageDtype(torch.uint8), last]
    dataset = ImageFolder(str(image_folder), v1.Compose(transform))
    assert "python" in FusionLoader(dataset, 8, num_workers=1).explain()
    assert same_batches(DataLoader(dataset, 8), FusionLoader(dataset, 8, num_workers=1))


class Wrapper:
    """Passes everything on but what it does itself."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        return torch.full((3, 4, 4), -1.0), 100 + index


def test_a_wrapper_is_not_what_it_wraps(image_folder):
    paths = sorted(str(path) for path in image_folder.glob("*/*.jpg"))
    dataset = Wrapper(Encoded(paths, v1.Compose([v1.Resize((4, 4)), v1.ToTensor()])))
    assert compile_dataset(dataset).plan is None
    assert same_batches(DataLoader(dataset, 8), FusionLoader(dataset, 8, num_workers=1))
