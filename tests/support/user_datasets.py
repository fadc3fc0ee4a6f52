"""Datasets of user code, in a module that workers of a Ray cluster can import, too."""

from __future__ import annotations

import os
import random
import threading
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch.utils.data import Dataset, get_worker_info
from torchvision import transforms


class Augmented(Dataset[Any]):
    """Samples that are drawn from all global generators.

    ``odd`` says by its index what is odd about a sample: ``"raises"``, ``"shape"`` or ``"text"``.
    """

    def __init__(self, length: int = 40, odd: dict[int, str] | None = None) -> None:
        self.length, self.odd = length, odd or {}
        self.augment = transforms.Compose(
            [transforms.RandomResizedCrop(24), transforms.ColorJitter(0.4), transforms.ToTensor()]
        )

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        assert get_worker_info() is not None
        odd = self.odd.get(index)
        if odd == "raises":
            raise ValueError("this sample is bad")
        size = 32 if odd == "shape" else 16
        levels = np.random.default_rng(index).integers(0, 256, (48, 40, 3), np.uint8)
        image = ImageEnhance.Contrast(Image.fromarray(levels)).enhance(random.uniform(0.5, 1.5))
        return {
            "image": self.augment(image),
            "noise": (torch.rand(size), np.random.standard_normal((2, 3))),
            "label": index,
            "weight": random.random(),
            "name": f"image {index}" * (200 if odd == "text" else 1),
        }


class Opened(Dataset[Any]):
    """Image files that user code opens, with draws of all global generators.

    ``samples`` are paths and targets, as of an ``ImageFolder``.
    """

    def __init__(self, samples: list[tuple[str, int]], size: int = 224) -> None:
        self.samples = samples
        self.augment = transforms.Compose(
            [transforms.RandomResizedCrop(size), transforms.ColorJitter(0.4), transforms.ToTensor()]
        )
        self.noise = torch.linspace(0, 1, 5)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, target = self.samples[index]
        with Image.open(path) as image:
            pixels = self.augment(image.convert("RGB"))
        noise = self.noise * random.random() + np.random.standard_normal(5)
        return pixels, noise * target


class Ranked(Opened):
    """One that makes other samples in each rank, which its pickle does not show."""

    def __getitem__(self, index: int) -> Any:
        pixels, noise = super().__getitem__(index)
        return pixels, noise + int(os.environ["LOCAL_RANK"])


class Brighter:
    """A transform that is not compiled, and draws."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image * (1 + random.random())


def weighted(samples: list[Any]) -> Any:
    """A ``collate_fn`` that draws, as for mixup."""
    images, targets = map(torch.stack, zip(*samples, strict=True))
    share = torch.rand(1) + random.random()
    return images * share + images.flip(0) * (1 - share), targets * np.random.random()


class Locked(Dataset[Any]):
    """One that cannot be pickled, even with Ray's cloudpickle."""

    def __init__(self) -> None:
        self.state = {"lock": threading.Lock()}

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index
