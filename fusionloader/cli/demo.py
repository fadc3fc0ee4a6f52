"""The demo command: the same training with DataLoader and with FusionLoader, side by side."""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.cli.corpus import ensure_corpus
from fusionloader.cli.counts import at_least
from fusionloader.cli.dead_leaves import CLASSES
from fusionloader.cli.measure.contenders import close_loader
from fusionloader.cli.measure.protocol import NOISY_SPREAD
from fusionloader.cli.measure.workloads import pil_dataset
from fusionloader.cli.progress import Progress
from fusionloader.cli.training import train_interleaved
from fusionloader.options.aliases import AnyLoader
from fusionloader.system.limits.processors import cores_allowed

MODEL_SEED = 7
ORDER_SEED = 11


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "--images", type=at_least(CLASSES), default=1000, help="training images (1000)"
    )
    parser.add_argument("--data", type=Path, help="folder to keep the corpus in (the user's cache)")
    parser.add_argument("--epochs", type=at_least(1), default=2, help="epochs to train (2)")
    parser.add_argument("--batch-size", type=at_least(1), default=64, help="samples a batch (64)")
    parser.add_argument("--workers", type=at_least(0), help="worker processes (cores, at most 8)")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="rounds of pure loading (3)")
    parser.add_argument("--cpu", action="store_true", help="train on the CPU even with a GPU")


def run(options: argparse.Namespace) -> int:
    """Makes the corpus, trains twice, times pure loading; returns the exit status."""
    workers = min(8, cores_allowed()) if options.workers is None else options.workers
    device = torch.device("cuda" if torch.cuda.is_available() and not options.cpu else "cpu")
    corpus = ensure_corpus(options.images, folder=options.data)
    print(
        f"corpus: {corpus.train_images} training images, {corpus.mean_bytes / 1e3:.0f} KB and "
        f"{corpus.mean_pixels / 1e6:.2f} megapixels on average, in {corpus.root}"
    )
    print(f"{workers} workers, batches of {options.batch_size}, training on {device}\n")
    if device.type == "cpu":
        # The workers decode on the same cores: more threads here would only compete with them.
        torch.set_num_threads(1)
    dataset = pil_dataset(corpus.train, "default")
    _read_once(dataset)

    def loader_of(kind: type[AnyLoader]) -> AnyLoader:
        return kind(
            dataset,
            batch_size=options.batch_size,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=device.type == "cuda",
            generator=torch.Generator().manual_seed(ORDER_SEED),
        )

    loaders = {"DataLoader": loader_of(DataLoader), "FusionLoader": loader_of(FusionLoader)}
    try:
        print("training, epochs interleaved")
        reports = train_interleaved(
            loaders, epochs=options.epochs, device=device, model_seed=MODEL_SEED
        )
        fusion = loaders["FusionLoader"]
        assert isinstance(fusion, FusionLoader)
        print(f"\nwhat FusionLoader does\n{fusion.explain()}")
        rates = time_loading(loaders, options.rounds)
    finally:
        for loader in loaders.values():
            close_loader(loader)
    speeds = {
        name: sum(e.samples for e in epochs) / sum(e.seconds for e in epochs)
        for name, epochs in reports.items()
    }
    print(f"\nspeed-up of this training:  {speeds['FusionLoader'] / speeds['DataLoader']:.2f}x")
    if options.rounds:
        ratios = [f / d for f, d in zip(rates["FusionLoader"], rates["DataLoader"], strict=True)]
        print(f"speed-up of loading alone:  {statistics.median(ratios):.2f}x")
    if device.type == "cpu":
        print("(The network is small on purpose: one that keeps the cores busy hides any loader.)")
    return 0


def _read_once(dataset: ImageFolder) -> None:
    """Reads the files into the page cache, so that no loader has a cold start."""
    with Progress("reading the files once", len(dataset.samples)) as progress:
        for path, _ in dataset.samples:
            Path(path).read_bytes()
            progress.advance()


def time_loading(loaders: dict[str, AnyLoader], rounds: int) -> dict[str, list[float]]:
    """Returns samples/s of whole epochs without training; the loaders' epochs are interleaved."""
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    if rounds < 1:
        return rates
    print(f"\nloading alone, {rounds} epochs each, interleaved")
    for _ in range(rounds):
        for name, loader in loaders.items():
            rates[name].append(_epoch_rate(loader, name))
    for name, values in rates.items():
        median = statistics.median(values)
        spread = (max(values) - min(values)) / median
        noise = " (noisy: is the machine busy?)" if spread > NOISY_SPREAD else ""
        print(f"  {name:<12} median {median:7.0f} samples/s, spread {spread:.0%}{noise}")
    return rates


def _epoch_rate(loader: AnyLoader, name: str) -> float:
    samples = 0
    started = time.perf_counter()
    with Progress(f"{name} loading", len(loader)) as progress:
        for _, targets in loader:
            samples += len(targets)
            progress.advance()
    return samples / (time.perf_counter() - started)
