"""Validation beside training against validation that training waits for (ol.data §IV).

A small CNN learns generated images of 28 x 28 pixels in ten classes, 80 % of them for training and
20 % for validation, in short epochs. Training waits half of its time, as it would for a GPU: each
step is followed by a sleep of the length that steps have on a free machine. Ways alternate; each
round begins with the same model and the same draws. The accuracies of all epochs are compared.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import torch
from torch import nn
from torchvision import transforms

from benchmarks.study import parser_of, publish
from fusionloader import FusionLoader, WorkerPool
from fusionloader.addons.validation import OverlappedValidation, validate
from fusionloader.cli.progress import Progress

WAYS = ("serial, 1 part", "overlapped, 1 part", "serial, 2 parts", "overlapped, 2 parts")
CLASSES = 10


class Digits(torch.utils.data.Dataset[Any]):
    """Noisy copies of ten fixed patterns, as images in memory that a transform makes tensors of."""

    def __init__(self, count: int, seed: int) -> None:
        patterns = torch.rand(CLASSES, 28, 28, generator=torch.Generator().manual_seed(0))
        generator = torch.Generator().manual_seed(seed)
        self.targets = torch.randint(0, CLASSES, (count,), generator=generator)
        noise = torch.rand(count, 28, 28, generator=generator)
        mixed = 0.35 * patterns[self.targets] + 0.65 * noise
        self.data = (mixed * 255).to(torch.uint8).numpy()
        self.transform = transforms.Compose(
            [transforms.ToTensor(), transforms.Normalize((0.5,), (0.3,))]
        )

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.data[index]), int(self.targets[index])


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, CLASSES),
    )


def evaluate(model: nn.Module, batches: Any) -> dict[str, tuple[float, int]]:
    loss, right, count = 0.0, 0, 0
    for images, targets in batches:
        found = model(images)
        loss += nn.functional.cross_entropy(found, targets, reduction="sum").item()
        right += int((found.argmax(1) == targets).sum())
        count += len(targets)
    return {"loss": (loss, count), "accuracy": (right, count)}


def train(model: nn.Module, optimizer: Any, loader: Any, device_seconds: float) -> None:
    """Goes through an epoch; each step waits for as long as the device of another machine would."""
    model.train()
    for images, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), targets).backward()
        optimizer.step()
        time.sleep(device_seconds)


class Study:
    """The loaders of all ways, and the length of a step."""

    def __init__(self, options: argparse.Namespace, pool: WorkerPool) -> None:
        torch.set_num_threads(1)
        training = options.digits * 4 // 5
        common = {"batch_size": options.batch_size, "persistent_workers": True, "seed": 0}
        self.epochs = options.epochs
        self.generator = torch.Generator()
        self.loader = FusionLoader(
            Digits(training, 1), shuffle=True, generator=self.generator, pool=pool, **common
        )
        self.val = FusionLoader(
            Digits(options.digits - training, 2), pool=pool.background(), **common
        )
        self.device_seconds = self._step_seconds()

    def _step_seconds(self) -> float:
        """Returns the median length of a training step, without a wait."""
        model, times = model_of(), []
        optimizer = torch.optim.SGD(model.parameters(), 0.02)
        for images, targets in list(self.loader):
            began = time.perf_counter()
            train(model, optimizer, [(images, targets)], 0.0)
            times.append(time.perf_counter() - began)
        return median(times)

    def run(self, way: str) -> tuple[float, list[float]]:
        """Trains all epochs; returns the seconds of an epoch, and the accuracy of each."""
        parts = int(way.split()[1])
        self.generator.manual_seed(0)
        self.loader.set_epoch(0)
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), 0.02)
        overlapped = OverlappedValidation(evaluate, self.val, parts=parts)
        found = []
        began = time.perf_counter()
        for epoch in range(self.epochs):
            train(model, optimizer, self.loader, self.device_seconds)
            if way.startswith("serial"):
                found.append(validate(evaluate, model, self.val, epoch=epoch, parts=parts))
            else:
                overlapped.start(model, epoch)
                found.extend(overlapped.results())
        found.extend(overlapped.finish())
        seconds = (time.perf_counter() - began) / self.epochs
        overlapped.close()
        return seconds, [result.metrics["accuracy"] for result in found]


def main() -> None:
    parser = parser_of(__doc__, rounds=3)
    parser.add_argument("--epochs", type=int, default=100, help="of each run (100)")
    parser.add_argument("--digits", type=int, default=1000, help="images of both sets (1000)")
    parser.set_defaults(workers=1, batch_size=50)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    accuracies: dict[str, list[float]] = {}
    with WorkerPool(options.workers) as pool:
        study = Study(options, pool)
        with Progress("rounds", options.rounds) as progress:
            for _ in range(options.rounds):
                for way in WAYS:
                    took, accuracy = study.run(way)
                    seconds[way].append(took)
                    assert accuracies.setdefault(way, accuracy) == accuracy, "runs differ"
                progress.advance()
        study.loader.close()
        study.val.close()
    first = accuracies[WAYS[0]]
    assert all(each == first for each in accuracies.values()), "accuracies differ"
    rows, ratios = [], {}
    for way in WAYS:
        serial = seconds[WAYS[0]]
        ratios[way] = [a / b for a, b in zip(serial, seconds[way], strict=True)]
        ms = f"{median(seconds[way]) * 1e3:.0f}"
        rows.append((way, ms, f"{median(ratios[way]):.2f}", f"{first[-1]:.3f}"))
    publish(
        options,
        ("validation", "ms an epoch", "speed to serial, 1 part", "accuracy of the last epoch"),
        rows,
        seconds=seconds,
        ratios=ratios,
        accuracies=first,
        identical=True,
        device_seconds=study.device_seconds,
    )


if __name__ == "__main__":
    main()
