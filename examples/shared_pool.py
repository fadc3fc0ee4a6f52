"""Training and validation share one pool of workers: half the processes, the same batches.

    python examples/shared_pool.py

The script also validates in the middle of each training epoch: the training's iterator waits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sample_images import data_folder, parser_of
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, WorkerPool

SIZE = 64


def images(folder: Path, *augmentations: Any) -> ImageFolder:
    return ImageFolder(str(folder), transforms.Compose([*augmentations, transforms.ToTensor()]))


@torch.no_grad()
def accuracy(model: nn.Module, loader: FusionLoader[Any]) -> float:
    right = [model(x).argmax(1) == y for x, y in loader]
    return torch.cat(right).float().mean().item()


def train(model: nn.Module, loader: FusionLoader[Any], val: FusionLoader[Any]) -> None:
    """Goes through an epoch, with a validation in the middle of it and one at the end."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, y) in enumerate(loader, start=1):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step in (len(loader) // 2, len(loader)):
            print(f"  after {step:3} steps: accuracy {accuracy(model, val):.3f}")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--workers", type=int, default=2, help="processes of the pool (2)")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    train_folder = data_folder(options)
    val_folder = data_folder(options, "val")
    train_set = images(train_folder, transforms.RandomResizedCrop(SIZE))
    val_set = images(val_folder, transforms.Resize(SIZE), transforms.CenterCrop(SIZE))
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, len(train_set.classes)),
    )
    with WorkerPool(options.workers) as pool:
        loader = FusionLoader(train_set, 16, shuffle=True, pool=pool)
        val = FusionLoader(val_set, 16, pool=pool)
        for epoch in range(options.epochs):
            print(f"epoch {epoch}")
            train(model, loader, val)


if __name__ == "__main__":
    main()
