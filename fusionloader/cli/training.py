"""Trains a small network on an image folder and measures the time spent waiting for data."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import nn

from fusionloader.cli.dead_leaves import CLASSES
from fusionloader.cli.progress import Progress
from fusionloader.options.aliases import AnyLoader

# Synchronising with a GPU at every step would slow the training down.
REPORT_EVERY = 10


@dataclass(frozen=True, slots=True)
class EpochReport:
    """One epoch: mean loss, accuracy, samples, seconds, and seconds spent waiting for data."""

    loss: float
    accuracy: float
    samples: int
    seconds: float
    waiting_seconds: float

    @property
    def samples_per_second(self) -> float:
        """Samples per second of wall time, start of the workers included."""
        return self.samples / self.seconds

    @property
    def waiting_share(self) -> float:
        """The share of the epoch in which the training waited for a batch."""
        return self.waiting_seconds / self.seconds


def small_network(classes: int = CLASSES) -> nn.Module:
    """Returns a network for 224x224 RGB whose step costs less than loading its images.

    It reads 8x8-pixel averages and takes 0.16 ms of a core per sample. On a CPU a usual network
    would hide the loader's speed.
    """
    return nn.Sequential(
        nn.AvgPool2d(8),
        nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


class Trainer:
    """A network, its optimizer and its device; ``model_seed`` seeds the initial weights."""

    def __init__(self, device: torch.device, model_seed: int) -> None:
        torch.manual_seed(model_seed)
        self.device = device
        self.network = small_network().to(device)
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-4
        )

    def epoch(self, loader: AnyLoader, label: str) -> EpochReport:
        """Trains on every batch of ``loader`` once."""
        self.network.train()
        samples = 0
        loss_sum = torch.zeros((), device=self.device)
        right = torch.zeros((), device=self.device, dtype=torch.int64)
        started = time.perf_counter()
        waiting = 0.0
        with Progress(label, len(loader)) as progress:
            batches = iter(loader)
            for step in range(len(loader)):
                asked = time.perf_counter()
                images, targets = next(batches)
                waiting += time.perf_counter() - asked
                loss, answers = self._step(images, targets)
                samples += len(targets)
                loss_sum += loss * len(targets)
                right += answers
                note = f"loss {loss.item():.3f}" if step % REPORT_EVERY == 0 else ""
                progress.advance(note=note)
            # A further next() ends the loader's epoch, and torch's workers with it.
            if next(batches, None) is not None:
                raise RuntimeError(f"{type(loader).__name__} gave more batches than its length")
        self._wait_for_device()
        seconds = time.perf_counter() - started
        return EpochReport(
            float(loss_sum) / samples, int(right) / samples, samples, seconds, waiting
        )

    def _step(
        self, images: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        images = images.to(self.device, non_blocking=True)
        targets = targets.to(self.device, non_blocking=True)
        scores = self.network(images)
        loss = nn.functional.cross_entropy(scores, targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach(), (scores.detach().argmax(1) == targets).sum()

    def _wait_for_device(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def train_interleaved(
    loaders: dict[str, AnyLoader], *, epochs: int, device: torch.device, model_seed: int
) -> dict[str, list[EpochReport]]:
    """Trains one network per loader, their epochs interleaved; prints a line for every epoch.

    Interleaved, so that other load on the machine affects all of them alike.
    """
    trainers = {name: Trainer(device, model_seed) for name in loaders}
    reports: dict[str, list[EpochReport]] = {name: [] for name in loaders}
    for epoch in range(epochs):
        for name, loader in loaders.items():
            report = trainers[name].epoch(loader, f"{name} epoch {epoch + 1}/{epochs}")
            print(
                f"  epoch {epoch + 1} {name:<12}: loss {report.loss:.3f}, "
                f"accuracy {report.accuracy:6.1%}, {report.samples_per_second:7.0f} samples/s, "
                f"waiting for data {report.waiting_share:4.0%}",
                flush=True,
            )
            reports[name].append(report)
    return reports
