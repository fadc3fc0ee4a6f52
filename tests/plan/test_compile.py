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

from fusionloader import FusionLoader, compile_plan
from fusionloader.data.sources.datasets import compile_dataset
from fusionloader.transforms.plan.stages import is_random
from fusionloader.transforms.plan.transforms import compile_transform
from fusionloader.transforms.policies import ExtendedRandAugment

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


@pytest.mark.few(6)
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


class MyPolicy(ExtendedRandAugment):
    def __call__(self, image):
        return image


patched_flip = v1.RandomHorizontalFlip()
patched_flip.forward = lambda image: image
LAMBDA = v1.Lambda(lambda image: image)
TENSOR, FLOATS = [v1.PILToTensor()], [v1.ToTensor(), v1.Normalize(*NORMALIZE)]
V2_FLOATS = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
SHIFTED = [*TENSOR, v1.ConvertImageDtype(torch.float32), v1.Normalize([0.25] * 3, [1.0] * 3)]
SCALED = [v1.ToTensor(), v1.Normalize([-0.2] * 3, [2.0] * 3)]
LEVELS = v1.ConvertImageDtype(torch.uint8)
# Behind a resize: all of these run in Python, the conversion before the one that is not known too.
LEFT = [
    [MyFlip(), *TENSOR],
    [MyPolicy(), *TENSOR],
    [patched_flip, *TENSOR],
    [LAMBDA, *TENSOR],
    [v1.RandomRotation(10, fill=1.5), *TENSOR],
    [v1.RandomApply([LAMBDA], 0.5), *TENSOR],
    [v1.Resize(40, InterpolationMode.NEAREST), *TENSOR],
    [v1.RandomCrop(32, padding=4, pad_if_needed=True, padding_mode="reflect"), *TENSOR],
    [v1.RandomCrop(32, padding=4, fill=(1.5, 2, 3)), *TENSOR],
    [v1.RandAugment(interpolation=InterpolationMode.NEAREST_EXACT), *TENSOR],
    [*FLOATS, LAMBDA],
    *[[*V2_FLOATS, step] for step in (v2.RandAugment(), v2.RandomEqualize(), v1.GaussianBlur(3))],
    # Levels that were changed are not those of the image.
    *[[*each, LEVELS, v1.RandomInvert(1.0)] for each in (SHIFTED, SCALED)],
    # Erasing that could not be equal.
    [v1.ToTensor(), v1.RandomErasing(value="random"), v1.Normalize(*NORMALIZE)],
    [*TENSOR, v1.RandomErasing(value="random")],
    [*FLOATS, v1.RandomErasing(), v1.RandomHorizontalFlip()],
    [*FLOATS, v1.RandomErasing(0.001, value=(1.0, 2.0))],
]
SIZES_DIFFER = [v1.RandomRotation(9, expand=True)], [*FLOATS, v1.RandomErasing()]


@pytest.mark.parametrize(
    ("known", "left"), [*[([], each) for each in LEFT], SIZES_DIFFER], ids=repr
)
def test_what_is_not_known_exactly_stays_in_python(known, left):
    compiled = compile_transform(v1.Compose([v1.Resize((64, 48)), *known, *left]))
    assert len(compiled.plan.stages) == 1 + len(known) and compiled.plan.convert is None
    assert compiled.tail.transforms == left
    found = [bool(note.why) for note in compiled.notes]
    assert found == [False, *[False for _ in known], *[True for _ in left]]
    made = compiled.tail(photo(np.random.default_rng(0), 48, 64))
    assert isinstance(made, torch.Tensor) and made.shape[0] == 3


@pytest.mark.parametrize("step", [v1.GaussianBlur(515), v1.RandAugment(magnitude=31)], ids=repr)
def test_arguments_that_native_code_does_not_take_stay_in_python(step):
    compiled = compile_transform(v1.Compose([step, *TENSOR]))
    assert compiled.tail.transforms == [step, *TENSOR]


def test_an_empty_order_changes_nothing():
    rest = [v1.CenterCrop(8), v1.ToTensor()]
    compiled = compile_plan(v1.Compose([v1.RandomOrder([]), *rest]))
    assert compiled.tail is None
    image = photo(np.random.default_rng(0), 48, 64)
    assert torch.equal(compiled.apply(image, compiled.draw(*image.size)), v1.Compose(rest)(image))


@pytest.mark.parametrize(
    ("step", "random"),
    [
        *[(v1.Resize(30), False), (v1.Resize((30, 20)), False), (v2.Resize(30), False)],
        *[(v1.CenterCrop(20), False), (v1.Grayscale(), False), (v1.Pad(2), False)],
        *[(v1.RandomCrop(8), True), (v1.RandomHorizontalFlip(), True)],
        *[(v1.RandomResizedCrop(8), True), (v1.ColorJitter(0.5), True), (v1.RandAugment(), True)],
        (v1.RandomApply([v1.ColorJitter(0.5)]), True),
        (v2.RandomChoice([v2.Resize((8, 8)), v2.CenterCrop(8)]), True),
    ],
    ids=repr,
)
def test_plans_tell_whether_they_draw(step, random):
    compiled = compile_transform(v1.Compose([step, v1.CenterCrop(8), v1.ToTensor()]))
    assert compiled.tail is None and is_random(compiled.plan.stages) == random


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


class Alternating(ImageFolder):
    """Its transform is another at every second access."""

    accesses = 0

    @property
    def transform(self):
        self.accesses += 1
        return self._transforms[self.accesses // 2 % 2]  # torchvision asks twice for a sample

    @transform.setter
    def transform(self, transform):
        self._transforms = [transform, v1.Compose([transform, v1.Normalize(*NORMALIZE)])]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_that_is_a_property_is_asked_for_each_sample(image_folder, workers):
    def epoch(loader):
        transform = v1.Compose([v1.Resize((32, 32)), v1.ToTensor()])
        dataset = Alternating(str(image_folder), transform)
        dataset.accesses = -1
        return loader(dataset, 1, num_workers=workers)

    assert "a property transform" in epoch(FusionLoader).explain()
    assert same_batches(epoch(DataLoader), epoch(FusionLoader))


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
