"""Tests of a training that uses FusionLoader, for a machine without a GPU.

    python -m pytest examples/ci/test_training.py

They need neither data nor many cores: the images are drawn, and two workers are enough to test what
many do. ``num_workers=0`` loads in the test's own process, which a debugger can step through.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader

IMAGES, SIZE = 24, 32


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dark and bright images, in two class folders."""
    root = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for number in range(IMAGES):
        label = number % 2
        pixels = generator.integers(40, 90, (60, 80, 3)) + 120 * label
        path = root / f"class{label}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return root


def loader_of(folder: Path, workers: int) -> FusionLoader[Any]:
    """Stands for the function of your project that makes the loader."""
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
        ]
    )
    return FusionLoader(
        ImageFolder(folder, transform),
        batch_size=8,
        shuffle=True,
        num_workers=workers,
        seed=0,
        generator=torch.Generator().manual_seed(0),
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_the_training_learns(folder: Path, workers: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * 16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    with loader_of(folder, workers) as loader:
        for epoch in range(5):
            loader.set_epoch(epoch)
            for images, targets in loader:
                loss = nn.functional.cross_entropy(model(images), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_batches_do_not_depend_on_the_number_of_workers(folder: Path) -> None:
    with loader_of(folder, 1) as one, loader_of(folder, 2) as two:
        for (images, targets), (same_images, same_targets) in zip(one, two, strict=True):
            assert torch.equal(images, same_images)
            assert torch.equal(targets, same_targets)


def test_transforms_are_compiled(folder: Path) -> None:
    """A transform that is added later, and is not compiled, is noticed here."""
    with loader_of(folder, 2) as loader:
        assert "python" not in loader.explain(), loader.explain()


def test_the_training_goes_on_in_mid_epoch(folder: Path) -> None:
    with loader_of(folder, 2) as loader:
        whole = [images for images, _ in loader]
    with loader_of(folder, 2) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with loader_of(folder, 2) as loader:
        loader.load_state_dict(state)
        rest = [images for images, _ in loader]
    assert len(rest) == len(whole) - 1
    assert all(map(torch.equal, rest, whole[1:]))
