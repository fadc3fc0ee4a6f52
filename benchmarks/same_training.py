"""Accuracy after training with both loaders, over seeds: digits, and the demo's corpus."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import MNIST, ImageFolder
from torchvision.transforms.v2 import functional

from benchmarks.study import parser_of, publish
from fusionloader import FusionLoader
from fusionloader.cli.bench import setting_of
from fusionloader.options.aliases import AnyDataset, AnyLoader


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """A classification task: images to train and to test on, and the training's parameters."""

    train: AnyDataset
    test: AnyDataset
    channels: int
    epochs: int
    batch_size: int


class Residual(nn.Module):
    """A residual block of two convolutions, at half the resolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.around = nn.Conv2d(inputs, outputs, 1, stride=2, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Returns the activations."""
        return torch.relu(self.body(images) + self.around(images))


def small_resnet(channels: int, classes: int = 10) -> nn.Module:
    """Returns a residual network of 50,000 parameters."""
    return nn.Sequential(
        Residual(channels, 16),
        Residual(16, 32),
        Residual(32, 48),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, classes),
    )


def digits_task(samples: int, epochs: int) -> TrainingTask:
    """Returns digits of many sizes, positions and slants on noise, 28x28, in MNIST's class."""
    usual = [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
    augmented = [transforms.RandomCrop(28, padding=2), transforms.RandomRotation(10), *usual]
    return TrainingTask(
        _digits(samples, 0, augmented), _digits(1000, 1, usual), 1, epochs=epochs, batch_size=32
    )


def corpus_task(root: Path, epochs: int) -> TrainingTask:
    """Returns the demo's corpus at 64 pixels; every fifth image is kept for the test."""
    normalize = [
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
    augmented = [
        transforms.RandomResizedCrop(64, scale=(0.3, 1.0)),
        transforms.RandomHorizontalFlip(),
        transforms.RandAugment(),
        *normalize,
    ]
    plain = [transforms.Resize(72), transforms.CenterCrop(64), *normalize]
    train, test = (ImageFolder(str(root), transforms.Compose(s)) for s in (augmented, plain))
    train.samples = [sample for i, sample in enumerate(train.samples) if i % 5]
    test.samples = test.samples[::5]
    return TrainingTask(train, test, 3, epochs=epochs, batch_size=16)


def _digits(samples: int, seed: int, steps: list[object]) -> MNIST:
    rng = np.random.default_rng(seed)
    dataset = MNIST.__new__(MNIST)
    dataset.targets = torch.from_numpy(rng.integers(0, 10, samples))
    drawn = [_digit(int(target), rng) for target in dataset.targets]
    dataset.data = torch.from_numpy(np.stack(drawn))
    dataset.transform = transforms.Compose(steps)
    dataset.target_transform = None
    return dataset


def _digit(digit: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    image = Image.new("L", (28, 28))
    font = ImageFont.load_default(float(rng.integers(14, 26)))
    corner = (int(rng.integers(3, 12)), int(rng.integers(-2, 5)))
    ImageDraw.Draw(image).text(corner, str(digit), fill=int(rng.integers(90, 256)), font=font)
    slanted = functional.affine(
        image,
        angle=float(rng.uniform(-20, 20)),
        translate=[0, 0],
        scale=1.0,
        shear=[float(rng.uniform(-20, 20)), 0.0],
    )
    noise = rng.integers(0, 90, (28, 28))
    return np.clip(np.asarray(slanted) + noise, 0, 255).astype(np.uint8)


def accuracy(
    task: TrainingTask, make_loader: Callable[..., AnyLoader], seed: int, workers: int
) -> float:
    """Returns the accuracy on the test images after training."""
    torch.manual_seed(seed)
    network = small_resnet(task.channels)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    loader = make_loader(
        task.train, task.batch_size, shuffle=True, num_workers=workers, drop_last=True
    )
    steps = task.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps)
    for _ in range(task.epochs):
        for images, targets in loader:
            loss = nn.functional.cross_entropy(network(images), targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    network.eval()
    right = total = 0
    with torch.no_grad():
        for images, targets in make_loader(task.test, 100, num_workers=workers):
            right += int((network(images).argmax(1) == targets).sum())
            total += len(targets)
    return right / total


@dataclass(frozen=True, slots=True)
class Comparison:
    """Accuracies by seed with both loaders."""

    theirs: list[float]
    ours: list[float]

    @property
    def difference(self) -> float:
        """Difference of the means, positive where FusionLoader's is higher."""
        return statistics.mean(self.ours) - statistics.mean(self.theirs)

    @property
    def spread(self) -> float:
        """Difference of the highest and the lowest accuracy with DataLoader."""
        return max(self.theirs) - min(self.theirs)


def compare(
    task: TrainingTask, ours: Callable[..., AnyLoader], seeds: int = 5, workers: int = 2
) -> Comparison:
    """Trains with both loaders, seed by seed, on one thread: small networks gain from no more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        pairs = [
            (accuracy(task, DataLoader, seed, workers), accuracy(task, ours, seed, workers))
            for seed in range(seeds)
        ]
    finally:
        torch.set_num_threads(threads)
    return Comparison([pair[0] for pair in pairs], [pair[1] for pair in pairs])


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.set_defaults(images=1000)
    parser.add_argument("--epochs", type=int, default=8, help="of each training (8)")
    options = parser.parse_args()
    setting, corpus = setting_of(options, "default")
    tasks = {
        "digits": digits_task(2000, options.epochs),
        "corpus": corpus_task(setting.root, options.epochs),
    }
    rows, figures = [], {}
    for name, task in tasks.items():
        compared = compare(task, FusionLoader, seeds=options.rounds, workers=options.workers)
        figures[name] = {"torch": compared.theirs, "fusionloader": compared.ours}
        rows.append(
            (
                name,
                f"{statistics.mean(compared.theirs):.3f}",
                f"{statistics.mean(compared.ours):.3f}",
                f"{compared.difference:+.3f}",
                f"{compared.spread:.3f}",
            )
        )
    header = ("task", "DataLoader", "FusionLoader", "difference", "DataLoader's spread")
    publish(options, header, rows, accuracies=figures, corpus=corpus)


if __name__ == "__main__":
    main()
