"""Small corpora and comparisons that tests share."""

import numpy as np
import pytest
import torch
from PIL import Image

# What several folders share, which have no conftest.py of their own: tests and their scripts
# import this one by its name.
pytest_plugins = ["fake_cuda", "lending_fixtures", "property_tests"]

NORMALIZE = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def photo(generator, width, height):
    """Smooth colors with some noise, so that JPEGs of it are like those of photographs."""
    small = generator.integers(0, 256, (height // 16 + 2, width // 16 + 2, 3), dtype=np.uint8)
    image = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))
    noise = generator.integers(-12, 13, image.shape)
    return Image.fromarray(np.clip(image.astype(int) + noise, 0, 255).astype(np.uint8))


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory):
    """40 JPEGs of different sizes in two classes."""
    root = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for number in range(40):
        folder = root / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        width, height = (int(side) for side in generator.integers(40, 220, 2))
        photo(generator, width, height).save(folder / f"{number:03}.jpg", quality=90)
    return root


def train_transform(size=32):
    from torchvision import transforms

    return transforms.Compose(
        [
            transforms.RandomResizedCrop(size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(*NORMALIZE),
        ]
    )


def eval_transform(resize=40, size=32):
    from torchvision import transforms

    return transforms.Compose(
        [
            transforms.Resize(resize),
            transforms.CenterCrop(size),
            transforms.ToTensor(),
            transforms.Normalize(*NORMALIZE),
        ]
    )


@pytest.fixture
def train_set(image_folder):
    from torchvision.datasets import ImageFolder

    return ImageFolder(str(image_folder), train_transform())


@pytest.fixture
def eval_set(image_folder):
    from torchvision.datasets import ImageFolder

    return ImageFolder(str(image_folder), eval_transform())


def equal(first, second):
    """Whether two batches are the same: containers, types and every bit."""
    if isinstance(first, torch.Tensor):
        return (
            isinstance(second, torch.Tensor)
            and first.dtype == second.dtype
            and torch.equal(first, second)
        )
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[k], second[k]) for k in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(equal, first, second))
    return first == second


def same_batches(first, second):
    first, second = list(first), list(second)
    return len(first) == len(second) and all(map(equal, first, second))


@pytest.fixture
def any_may_die(monkeypatch):
    """Lets a test kill workers at any moment.

    Otherwise it is an error when three in a row end before they ask for work, and when three end
    at the same samples: on a busy machine random kills come to that.
    """
    from fusionloader.manager import local_manager
    from fusionloader.workers import worker_set

    monkeypatch.setattr(worker_set, "_FRUITLESS_DEATHS", 1 << 30)
    monkeypatch.setattr(local_manager, "_MOST_DEATHS", 1 << 30)


def kill_all(iterator):
    """Leaves a loader nobody to go on with: it has to start others."""
    for process in iterator._workers:
        process.kill()
