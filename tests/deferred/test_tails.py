"""User code behind a plan: it gets deferred images, and results stay what they are without."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from deferred.steps import MocoBlur, PadToSquare
from PIL import Image, ImageOps
from support.batches import same_batches
from support.images import photo
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fusionloader import FusionLoader
from fusionloader.data.deferred import counts

FILES = 16


class TwoCrops:
    """As MoCo and SimSiam have it."""

    def __init__(self, *steps):
        self.steps = transforms.Compose(steps)

    def __call__(self, image):
        return [self.steps(image), self.steps(image)]


class Told:
    """Looks at what Pillow says of the image, and goes on."""

    def __call__(self, image):
        reported = image.mode, image.size, sorted(map(str, image.info)), type(image).__name__
        level = sum(map(ord, str(reported))) % 256 / 255
        return transforms.functional.to_tensor(ImageOps.exif_transpose(image)) + level


CROP = transforms.RandomResizedCrop(24)
JITTER = transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)
TAILS = {
    "two crops": TwoCrops(CROP, JITTER, MocoBlur(), transforms.ToTensor()),
    "after a crop": transforms.Compose([CROP, MocoBlur(), JITTER, transforms.ToTensor()]),
    "after a resize to any size": transforms.Compose(
        [transforms.Resize(40), PadToSquare(), CROP, transforms.ToTensor()]
    ),
    "of grey": transforms.Compose([transforms.Grayscale(), CROP, Told()]),
    "after borders": transforms.Compose(
        [transforms.Pad((3, 1)), transforms.RandomRotation(9), MocoBlur(), CROP, Told()]
    ),
    "after an expanded rotation": transforms.Compose(
        [transforms.RandomRotation(9, expand=True), MocoBlur(), CROP, Told()]
    ),
    "in v2": v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), Told()]),
    "of the image's info": transforms.Compose([transforms.Resize((30, 30)), Told()]),
}


LEFT = ("of grey",)  # Pillow's image of one channel


class Encoded(Dataset):
    """Bytes from anywhere."""

    def __init__(self, paths, transform):
        self.contents, self.transform = [Path(path).read_bytes() for path in paths], transform

    def __len__(self):
        return len(self.contents)

    def read_encoded(self, index):
        return self.contents[index], index

    def __getitem__(self, index):
        with Image.open(io.BytesIO(self.contents[index])) as image:
            return self.transform(image.convert("RGB")), index


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    (root / "a").mkdir()
    rng = np.random.default_rng(2)
    for number in range(FILES):
        image = photo(rng, 60 + number, 50)
        options = {"progressive": number % 4 == 1, "dpi": (72, 72)}
        kind = {5: "PNG", 6: "WEBP"}.get(number, "JPEG")
        mode = {2: "L", 3: "CMYK"}.get(number, "RGB")
        if number == 7:
            exif = Image.Exif()
            exif[0x0112] = 6
            options["exif"] = exif
        image.convert(mode).save(root / "a" / f"{number:02}.{kind.lower()}", kind, **options)
    return root


def _epochs(dataset, workers, **options):
    loader = FusionLoader(dataset, 4, num_workers=workers, seed=7, **options)
    return [list(loader) for _ in range(2)], loader.stats().deferred_images


def test_a_worker_does_not_report_what_training_has_counted(folder):
    counts.counts().files += 3
    try:
        _, plain = _epochs(ImageFolder(str(folder), TAILS["of grey"]), 1, deferred_images="off")
    finally:
        counts.take()
    assert not plain["files"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", TAILS)
@pytest.mark.few(4)
def test_batches_are_those_without(name, workers, folder):
    dataset = ImageFolder(str(folder), TAILS[name])
    expected, plain = _epochs(dataset, workers, deferred_images="off")
    made, deferred = _epochs(dataset, workers)
    for ours, theirs in zip(made, expected, strict=True):
        assert same_batches(ours, theirs)
    assert not plain["files"]
    assert (deferred["results"].get("tensor", 0) >= 2 * (FILES - 4)) is (name not in LEFT)


@pytest.mark.parametrize("workers", [0, 2])
def test_encoded_datasets_have_them_too(workers, folder):
    dataset = Encoded(sorted(folder.glob("*/*")), TAILS["two crops"])
    expected, _ = _epochs(dataset, workers, deferred_images="off")
    made, deferred = _epochs(dataset, workers)
    for ours, theirs in zip(made, expected, strict=True):
        assert same_batches(ours, theirs)
    assert deferred["results"]["tensor"] >= 4 * (FILES - 3)


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_files_raise_what_they_raise_without(workers, folder, tmp_path):
    (tmp_path / "a").mkdir()
    for path in sorted(folder.glob("*/*")):
        content = path.read_bytes()
        (tmp_path / "a" / path.name).write_bytes(content[: len(content) // 2])
    dataset = ImageFolder(str(tmp_path), TAILS["two crops"])
    for index in range(len(dataset)):
        messages = []
        for deferred in ("off", "auto"):
            sampler = [index]
            loader = FusionLoader(
                dataset, 1, sampler=sampler, num_workers=workers, deferred_images=deferred
            )
            with pytest.raises(Exception) as raised:  # noqa: PT011
                list(loader)
            messages.append((raised.type, str(raised.value).splitlines()[-1]))
        assert messages[0] == messages[1]


def test_the_users_generators_are_as_they_were(folder):
    dataset = ImageFolder(str(folder), TAILS["two crops"])
    torch.manual_seed(1)
    loader = FusionLoader(dataset, 4, seed=7)
    state = torch.get_rng_state()
    iterator = iter(loader)
    after = torch.get_rng_state()
    next(iterator)
    assert torch.equal(torch.get_rng_state(), after)
    assert state.shape == after.shape
