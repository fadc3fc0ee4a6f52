"""Tar shards on a server that answers after 50 ms, and after 2 s once in a hundred requests.

Contenders with the same samples in the same order and native decoding are the shards in local
files, the stream, and a naive reader that makes a request for every sample in its worker.
webdataset and torch read the same shards from the same server, each as a whole, in their own order.
"""

from __future__ import annotations

import argparse
import io
import os
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from torch.utils.data import DataLoader
from torchvision import transforms

from benchmarks.range_emulator import Lateness, emulating
from benchmarks.study import parser_of, publish
from benchmarks.tar_folder import web_dataset
from fusionloader import FusionLoader
from fusionloader.cache.remote_files import RemoteFiles
from fusionloader.cli.corpus import ensure_corpus
from fusionloader.cli.measure.report import announce
from fusionloader.data.sources import ByteRanges, EncodedImages, TarStream
from fusionloader.data.sources.url_reading import UrlFiles

SHARD_SAMPLES = 500
WEBDATASET = "webdataset + torch"
TRANSFORM = transforms.Compose(
    [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
)


class OneByOne(EncodedImages):
    """Ranges of URLs, with a request for every sample, when its worker wants it."""

    def remote_files(self) -> RemoteFiles:
        """Returns what workers get the bytes through."""
        return UrlFiles(self.storage_options)


@dataclass(frozen=True, slots=True)
class Epoch:
    """What an epoch has shown: samples per second, waits for batches, requests, CPU seconds."""

    rate: float
    waits: list[float]
    requests: int
    first_seconds: float


def write_shards(folder: Path, images: list[Path], samples: int) -> int:
    """Writes shards of ``samples`` samples, images repeated; returns how many shards."""
    count = 0
    for first in range(0, samples, SHARD_SAMPLES):
        with tarfile.open(folder / f"train-{count:03d}.tar", "w") as archive:
            for number in range(first, min(first + SHARD_SAMPLES, samples)):
                data = images[number % len(images)].read_bytes()
                for kind, content in (("jpg", data), ("cls", str(number % 1000).encode())):
                    member = tarfile.TarInfo(f"{number:08d}.{kind}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
        count += 1
    return count


def contenders(
    url: str, folder: Path, shards: int, options: argparse.Namespace
) -> dict[str, tuple[Any, Any]]:
    """Returns the datasets, and the sampler of those that have indices."""
    stream = TarStream(
        f"{url}/train-{{000..{shards - 1:03d}}}.tar",
        transform=TRANSFORM,
        shuffle_window=options.window,
        read_ahead=options.read_ahead,
    )
    ranges, sampler = stream.byte_ranges(), stream.sampler(seed=1)
    local = ByteRanges(
        [folder / os.path.basename(url) for url in ranges.files],
        ranges.file,
        ranges.offset,
        ranges.nbytes,
    )
    targets = np.asarray(stream.targets)
    return {
        "local files": (EncodedImages(local, targets, transform=TRANSFORM), sampler),
        "stream": (stream, sampler),
        "a request a sample": (OneByOne(ranges, targets, transform=TRANSFORM), sampler),
        WEBDATASET: (web_dataset(list(ranges.files), TRANSFORM), None),
    }


def epochs(dataset: Any, sampler: Any, options: argparse.Namespace, most: int) -> Iterator[Epoch]:
    """Yields epochs of one loader, of ``most`` batches at most; the first is a warm-up.

    Datasets without a sampler are torch's ``DataLoader``'s.
    """
    kind: type[DataLoader[Any]] = FusionLoader if sampler is not None else DataLoader
    loader = kind(
        dataset,
        options.batch_size,
        sampler=sampler,
        num_workers=options.workers,
        persistent_workers=True,
        multiprocessing_context=options.start_method,
    )
    number = 0
    while True:
        if isinstance(loader, FusionLoader):
            loader.set_epoch(number)
        number += 1
        before = requests_of(loader)
        waits, samples = [], 0
        began = last = time.perf_counter()
        for images, _ in loader:
            now = time.perf_counter()
            waits.append(now - last)
            last = now
            samples += len(images)
            if len(waits) == most:
                break
        first = waits.pop(0)
        rate = (samples - options.batch_size) / (last - began - first)
        yield Epoch(rate, waits, requests_of(loader) - before, first)


def requests_of(loader: DataLoader[Any]) -> int:
    """Returns the requests of a stream; 0 of other contenders."""
    stats = loader.stats().stream if isinstance(loader, FusionLoader) else None
    return 0 if stats is None else stats.requests


def main() -> None:
    parser = parser_of(__doc__.splitlines()[0] if __doc__ else None, rounds=5)
    parser.set_defaults(workers=8)
    parser.add_argument("--stream-samples", type=int, default=6000, help="of an epoch (6000)")
    parser.add_argument("--naive-batches", type=int, default=20, help="of its epoch at most (20)")
    parser.add_argument("--window", type=int, default=1024, help="of the shuffle (1024)")
    parser.add_argument("--read-ahead", default="128MiB", help="of the stream (128MiB)")
    options = parser.parse_args()
    root = options.data or ensure_corpus(options.images, folder=options.cache).train
    images = sorted(path for path in root.rglob("*.jpg"))
    lateness = Lateness()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")  # indexes of this study alone
        shards = write_shards(folder, images, options.stream_samples)
        url = stack.enter_context(emulating(folder, lateness))
        found = contenders(url, folder, shards, options)
        naive = "a request a sample"
        running = {
            name: epochs(*each, options, options.naive_batches if name == naive else 0)
            for name, each in found.items()
        }
        results: dict[str, list[Epoch]] = {name: [] for name in running}
        for number in range(options.rounds + 1):
            for name, run in running.items():
                epoch = next(run)
                announce(f"{name}, round {number}: {epoch.rate:.0f} img/s")
                if number:
                    results[name].append(epoch)
        report(options, results, naive)


def report(options: argparse.Namespace, results: dict[str, list[Epoch]], naive: str) -> None:
    """Prints and writes the figures."""
    local = [epoch.rate for epoch in results["local files"]]
    rows, figures = [], {}
    for name, found in results.items():
        rates = [epoch.rate for epoch in found]
        waits = np.concatenate([epoch.waits for epoch in found])
        requests = sum(epoch.requests for epoch in found)
        if name == naive:  # its workers are ahead of the batches that are counted
            requests = options.stream_samples * len(found)
        if name == WEBDATASET:  # one a shard
            requests = -(-options.stream_samples // SHARD_SAMPLES) * len(found)
        figures[name] = {
            "rates": rates,
            "rate": median(rates),
            "ratio_to_local": median(r / own for r, own in zip(rates, local, strict=True)),
            "wait_p50": float(np.quantile(waits, 0.5)),
            "wait_p99": float(np.quantile(waits, 0.99)),
            "requests": requests,
            "samples_per_request": options.stream_samples * len(found) / requests
            if requests
            else 0.0,
            "first_batch_seconds": median(epoch.first_seconds for epoch in found),
        }
        each = figures[name]
        rows.append(
            [
                name,
                f"{each['rate']:,.0f}",
                f"{each['ratio_to_local']:.2f}",
                f"{1000 * each['wait_p50']:.0f} ms",
                f"{1000 * each['wait_p99']:.0f} ms",
                f"{each['samples_per_request']:.1f}" if requests else "-",
            ]
        )
    header = ("shards", "img/s", "of local", "wait p50", "wait p99", "samples a request")
    publish(options, header, rows, contenders=figures)


if __name__ == "__main__":
    main()
