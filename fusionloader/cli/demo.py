"""The demo: the same training with DataLoader and with FusionLoader, side by side."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.cli.corpus import available_cores, ensure_corpus
from fusionloader.cli.measure.contenders import close_loader
from fusionloader.cli.measure.workloads import pil_dataset
from fusionloader.cli.progress import Progress
from fusionloader.cli.training import train

MODEL_SEED = 7
ORDER_SEED = 11

LoaderFactory = Callable[[], DataLoader[Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The demo's options."""
    parser.add_argument("--images", type=int, default=2000, help="training images (2000)")
    parser.add_argument("--data", type=Path, help="folder to keep the corpus in (the user's cache)")
    parser.add_argument("--epochs", type=int, default=2, help="epochs to train (2)")
    parser.add_argument("--batch-size", type=int, default=64, help="samples a batch (64)")
    parser.add_argument("--workers", type=int, help="worker processes (cores, at most 8)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of pure loading (3)")
    parser.add_argument("--cpu", action="store_true", help="train on the CPU even with a GPU")


def run(options: argparse.Namespace) -> int:
    """Makes the corpus, trains twice, times pure loading; returns the exit status."""
    workers = min(8, available_cores()) if options.workers is None else options.workers
    device = torch.device("cuda" if torch.cuda.is_available() and not options.cpu else "cpu")
    corpus = ensure_corpus(options.images, folder=options.data)
    print(
        f"corpus: {corpus.train_images} training images, {corpus.mean_bytes / 1e3:.0f} KB and "
        f"{corpus.mean_pixels / 1e6:.2f} megapixels on average, in {corpus.root}"
    )
    print(f"{workers} workers, batches of {options.batch_size}, training on {device}\n")
    if device.type == "cpu":
        # The workers decode on the same cores: more threads here would only take turns with them.
        torch.set_num_threads(1)
    dataset = pil_dataset(corpus.train, "default")
    _read_once(dataset)

    def loader_of(kind: type[DataLoader[Any]]) -> DataLoader[Any]:
        return kind(
            dataset,
            batch_size=options.batch_size,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=device.type == "cuda",
            generator=torch.Generator().manual_seed(ORDER_SEED),
        )

    factories: dict[str, LoaderFactory] = {
        "DataLoader": lambda: loader_of(DataLoader),
        "FusionLoader": lambda: loader_of(FusionLoader),
    }
    print("training")
    speeds = {}
    for name, factory in factories.items():
        epochs = train(
            factory, epochs=options.epochs, device=device, model_seed=MODEL_SEED, name=name
        )
        speeds[name] = sum(e.samples for e in epochs) / sum(e.seconds for e in epochs)
    _explain(factories["FusionLoader"])
    rates = time_loading(factories, options.rounds)
    print(f"\nspeed-up of the training: {speeds['FusionLoader'] / speeds['DataLoader']:.2f}x")
    if rates:
        ratios = [f / d for f, d in zip(rates["FusionLoader"], rates["DataLoader"], strict=True)]
        print(f"speed-up of loading alone: {statistics.median(ratios):.2f}x")
    return 0


def _read_once(dataset: ImageFolder) -> None:
    """Brings the files into the file cache, so that the first to train has no cold start."""
    for path, _ in dataset.samples:
        Path(path).read_bytes()


def _explain(factory: LoaderFactory) -> None:
    loader = factory()
    assert isinstance(loader, FusionLoader)
    print(f"\nwhat FusionLoader compiled\n{loader.explain()}")
    close_loader(loader)


def time_loading(factories: dict[str, LoaderFactory], rounds: int) -> dict[str, list[float]]:
    """Samples/s of whole epochs without training, by turns, after one uncounted epoch each."""
    if rounds < 1:
        return {}
    print(f"\nloading alone, {rounds} rounds by turns")
    loaders = {name: factory() for name, factory in factories.items()}
    rates: dict[str, list[float]] = {name: [] for name in factories}
    try:
        for turn in range(rounds + 1):
            for name, loader in loaders.items():
                rate = _epoch_rate(loader, name)
                if turn > 0:
                    rates[name].append(rate)
    finally:
        for loader in loaders.values():
            close_loader(loader)
    for name, values in rates.items():
        print(f"  {name:<13} median {statistics.median(values):7.0f} samples/s")
    return rates


def _epoch_rate(loader: DataLoader[Any], name: str) -> float:
    samples = 0
    started = time.perf_counter()
    with Progress(f"{name} loading", len(loader)) as progress:
        for _, targets in loader:
            samples += len(targets)
            progress.advance()
    return samples / (time.perf_counter() - started)
