"""A sweep over learning rates: four trainings at once prepare each mini-batch once.

    python examples/share_preparation.py

The trainings are ordinary processes, like those of Ray Tune or Optuna, or of four terminals. They
only have the ``share`` name of their loaders in common.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from sample_images import data_folder, parser_of
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader

SIZE = 64


def loader_of(folder: Path, workers: int, word: str) -> FusionLoader[Any]:
    transform = transforms.Compose([transforms.RandomResizedCrop(SIZE), transforms.ToTensor()])
    dataset = ImageFolder(str(folder), transform)
    return FusionLoader(
        dataset,
        16,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        seed=0,
        generator=torch.Generator().manual_seed(0),  # the same order in all jobs
        share=word,
    )


def train(options: argparse.Namespace, rate: float) -> None:
    loader = loader_of(data_folder(options), options.workers, options.word)
    last = nn.LazyLinear(len(loader.dataset.classes))  # type: ignore[attr-defined]
    model = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.Flatten(), last)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    loss = torch.zeros(())
    for _ in range(options.epochs):
        for images, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), targets)
            loss.backward()
            optimizer.step()
    shared = loader.stats().shared_prep
    assert shared is not None
    print(
        f"learning rate {rate}: loss {loss.item():.3f}; {shared.shared_batches} batches of the "
        f"group, {shared.alone_batches} alone; samples made here: {shared.made_here}, by other "
        f"jobs: {shared.made_elsewhere}"
    )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--workers", type=int, default=1, help="of each training (1)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--word", default=f"sweep-{os.getpid()}", help="that the loaders share")
    parser.add_argument("--rates", default="0.3,0.1,0.03,0.01", help="learning rates")
    parser.add_argument("--rate", type=float, help="train with this one alone")
    options = parser.parse_args()
    if options.rate is not None:
        torch.set_num_threads(1)
        train(options, options.rate)
        return
    data = data_folder(options)  # made once, before all need it
    common = [sys.executable, __file__, "--word", options.word, "--data", str(data)]
    for name in ("workers", "epochs"):
        common += [f"--{name}", str(getattr(options, name))]
    jobs = [subprocess.Popen([*common, "--rate", rate]) for rate in options.rates.split(",")]
    sys.exit(max(job.wait() for job in jobs))


if __name__ == "__main__":
    main()
