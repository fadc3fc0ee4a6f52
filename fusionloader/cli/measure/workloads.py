"""The workloads: their datasets and transforms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.datasets import MNIST, ImageFolder
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from fusionloader.options.aliases import AnyDataset

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIDE = 224
# The augmentations between flip and conversion, by workload: v1's, v2's and their arguments.
POLICIES: dict[str, tuple[type[object], type[object], dict[str, int]]] = {
    "randaugment": (transforms.RandAugment, v2.RandAugment, {"num_ops": 2, "magnitude": 9}),
    "autoaugment": (transforms.AutoAugment, v2.AutoAugment, {}),
    "trivial": (transforms.TrivialAugmentWide, v2.TrivialAugmentWide, {}),
}
# RandAugment before the crop processes the whole image.
FULL_SIZE = "randaugment-full"
IMAGE_WORKLOADS = ("default", *POLICIES, FULL_SIZE)


def pil_transform(workload: str) -> Any:
    """Returns v1 transforms on PIL images, as most scripts have them."""
    steps: list[object] = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip()]
    if workload in POLICIES:
        policy, _, arguments = POLICIES[workload]
        steps.append(policy(**arguments))
    if workload == FULL_SIZE:
        steps.insert(0, transforms.RandAugment())
    return transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])


def tensor_transform(workload: str) -> Any:
    """Returns v2 transforms on uint8 tensors, as torchvision's documentation advises for speed."""
    steps: list[object] = [v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()]
    if workload in POLICIES:
        _, policy, arguments = POLICIES[workload]
        steps.append(policy(**arguments))
    if workload == FULL_SIZE:
        steps.insert(0, v2.RandAugment())
    convert = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    return v2.Compose([*steps, *convert])


def pil_dataset(root: Path, workload: str) -> ImageFolder:
    """Returns an image folder read with Pillow."""
    return ImageFolder(str(root), pil_transform(workload))


def tensor_dataset(root: Path, workload: str) -> ImageFolder:
    """Returns an image folder decoded to tensors by torchvision."""
    return ImageFolder(str(root), tensor_transform(workload), loader=_read_tensor)


def _read_tensor(path: str) -> torch.Tensor:
    image: torch.Tensor = decode_image(path, mode=ImageReadMode.RGB)
    return image


class TinyImages(Dataset[tuple[torch.Tensor, int]]):
    """Stored samples (float32 3x32x32, int), so that only the loader itself costs time."""

    STORED = 512

    def __init__(self, samples: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.samples = samples
        self.rows = torch.rand(self.STORED, 3, 32, 32, generator=generator)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.rows[index % self.STORED], index % 10


class TabularRows(Dataset[dict[str, Any]]):
    """Rows of a table: a dict of scalars and vectors."""

    STORED = 1024

    def __init__(self, samples: int) -> None:
        rng = np.random.default_rng(0)
        self.samples = samples
        self.features = rng.standard_normal((self.STORED, 32)).astype(np.float32)
        self.history = rng.integers(0, 10_000, (self.STORED, 16))
        self.price = rng.random(self.STORED)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = index % self.STORED
        return {
            "id": index,
            "price": float(self.price[row]),
            "features": self.features[row],
            "history": self.history[row],
            "label": index % 2,
        }


class DownloadedDigits(MNIST):  # type: ignore[misc]  # torchvision has no types
    """torchvision's MNIST with images of noise and the usual transforms: 28x28, float32."""

    def __init__(self, samples: int) -> None:
        rng = np.random.default_rng(0)
        self.data = torch.from_numpy(rng.integers(0, 256, (samples, 28, 28), dtype=np.uint8))
        self.targets = torch.from_numpy(rng.integers(0, 10, samples))
        self.transform = transforms.Compose(
            [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
        )
        self.target_transform = None


class HandmadeDigits(Dataset[tuple[torch.Tensor, int]]):
    """The same by a custom ``__getitem__``, which no plan can represent."""

    def __init__(self, samples: int) -> None:
        rng = np.random.default_rng(0)
        self.images = rng.integers(0, 256, (samples, 28, 28), dtype=np.uint8)
        self.labels = rng.integers(0, 10, samples)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.from_numpy(self.images[index]).unsqueeze(0).float().div_(255.0)
        return image.sub_(0.1307).div_(0.3081), int(self.labels[index])


@dataclass(frozen=True, slots=True)
class InMemory:
    """A workload without files: its dataset class and the samples of an epoch."""

    dataset: Callable[[int], AnyDataset]
    samples: int


IN_MEMORY = {
    "tiny": InMemory(TinyImages, 20_000),
    "tabular": InMemory(TabularRows, 20_000),
    "mnist": InMemory(DownloadedDigits, 60_000),
    "handmade": InMemory(HandmadeDigits, 60_000),
}
WORKLOADS = (*IMAGE_WORKLOADS, *IN_MEMORY)
