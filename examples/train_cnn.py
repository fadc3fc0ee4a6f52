"""Trains a small network on an image folder, on the CPU. Only one import differs.

python examples/train_cnn.py --data /data/imagenet
"""

from __future__ import annotations

import time

import torch
from sample_images import data_folder, parser_of
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder

# from torch.utils.data import DataLoader
from fusionloader import FusionLoader as DataLoader


def network(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 8, stride=8),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def main() -> None:
    parser = parser_of(__doc__, images=2000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    dataset = ImageFolder(
        data_folder(options),
        transforms.Compose(
            [
                transforms.RandomResizedCrop(224),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        ),
    )
    loader = DataLoader(
        dataset,
        batch_size=options.batch_size,
        shuffle=True,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
    )

    torch.manual_seed(0)
    # The workers decode on the same cores.
    torch.set_num_threads(1)
    model = network(len(dataset.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(options.epochs):
        started = time.perf_counter()
        loss_sum = 0.0
        for images, targets in loader:
            loss = nn.functional.cross_entropy(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.item() * len(targets)
        seconds = time.perf_counter() - started
        print(
            f"epoch {epoch + 1}: loss {loss_sum / len(dataset):.3f}, "
            f"{len(dataset) / seconds:.0f} samples/s"
        )


if __name__ == "__main__":
    main()
