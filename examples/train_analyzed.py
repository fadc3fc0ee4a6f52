"""A training with a training and a validation loader, for ``analyze``.

    python -m fusionloader analyze examples/train_analyzed.py

The script has no code for the analysis. Its step waits like the host of a GPU, so that the workers
have the cores.
"""

from __future__ import annotations

import time

import torch
from sample_images import data_folder, parser_of
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader

SIZE = 64


def main() -> None:
    parser = parser_of(__doc__, images=400)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--step-ms", type=float, default=5.0, help="of the device's work (5)")
    options = parser.parse_args()
    train_folder = data_folder(options)
    val_folder = data_folder(options, "val")
    crop = transforms.Compose([transforms.RandomResizedCrop(SIZE), transforms.ToTensor()])
    center = transforms.Compose(
        [transforms.Resize(SIZE), transforms.CenterCrop(SIZE), transforms.ToTensor()]
    )
    train_set, val_set = ImageFolder(train_folder, crop), ImageFolder(val_folder, center)
    loader = FusionLoader(train_set, 16, shuffle=True, num_workers=options.workers)
    validation = FusionLoader(val_set, 16, num_workers=options.workers)
    model = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * (SIZE // 8) ** 2, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(options.epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            time.sleep(options.step_ms / 1e3)
        with torch.no_grad():
            right = [(model(images).argmax(1) == labels) for images, labels in validation]
        print(f"epoch {epoch}: accuracy {torch.cat(right).float().mean():.2f}")


if __name__ == "__main__":
    main()
