"""Validates each epoch's model while the next epoch trains, with the workers of one pool.

python examples/overlapped_validation.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from sample_images import data_folder, parser_of
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, WorkerPool
from fusionloader.addons.validation import OverlappedValidation, ValidationResult

SIZE = 64


def images(folder: Path, *augmentations: Any) -> ImageFolder:
    return ImageFolder(str(folder), transforms.Compose([*augmentations, transforms.ToTensor()]))


def evaluate(model: nn.Module, batches: Iterator[Any]) -> dict[str, tuple[float, int]]:
    loss, right, count = 0.0, 0, 0
    for x, y in batches:
        found = model(x)
        loss += nn.functional.cross_entropy(found, y, reduction="sum").item()
        right += int((found.argmax(1) == y).sum())
        count += len(y)
    return {"loss": (loss, count), "accuracy": (right, count)}


def show(results: Iterable[ValidationResult]) -> None:
    for result in results:
        print(f"epoch {result.epoch}: {result.metrics['accuracy']:.3f} of {result.samples}")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    train_set = images(data_folder(options), transforms.RandomResizedCrop(SIZE))
    val_folder = data_folder(options, "val")
    val_set = images(val_folder, transforms.Resize(SIZE), transforms.CenterCrop(SIZE))
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, len(train_set.classes)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with WorkerPool(2) as pool:
        loader = FusionLoader(train_set, 16, shuffle=True, pool=pool)
        val = FusionLoader(val_set, 16, pool=pool.background())
        with OverlappedValidation(evaluate, val, parts=2) as validation:
            for epoch in range(options.epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
                validation.start(model, epoch)
                show(validation.results())
        show(validation.results())
        print(validation.explain())


if __name__ == "__main__":
    main()
