"""An image folder of ImageNet's size: start of an epoch, memory of workers, saving and resuming.

Names of 1.3 million files are made from those of the corpus, by links to its folders.
"""

from __future__ import annotations

import json
import statistics
import time
from argparse import Namespace
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from benchmarks.study import parser_of, publish
from fusionloader import FusionLoader
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.contenders import close_loader
from fusionloader.cli.measure.processes import (
    MEGABYTE,
    cpu_between,
    descendants,
    read_cpu,
    read_workers,
    shared_memory_used,
    wait_until_idle,
)
from fusionloader.cli.measure.workloads import pil_dataset

_STATES = 1000  # calls of state_dict, for their median


def enlarge(dataset: ImageFolder, links: Path, count: int) -> None:
    """Gives a dataset ``count`` files with distinct names, all of which can be read."""
    inside: dict[Path, list[tuple[str, int]]] = {}
    for path, target in dataset.samples:
        inside.setdefault(Path(path).parent, []).append((Path(path).name, target))
    samples: list[tuple[str, int]] = []
    for number, parent in enumerate(cycle(inside)):
        if len(samples) >= count:
            break
        link = links / f"n{number:08}"
        link.symlink_to(parent, target_is_directory=True)
        samples += [(f"{link}/{name}", target) for name, target in inside[parent]]
    del samples[count:]
    dataset.samples = dataset.imgs = samples
    dataset.targets = [target for _, target in samples]


def new_loader(
    kind: type[DataLoader[Any]], dataset: ImageFolder, options: Namespace
) -> DataLoader[Any]:
    return kind(
        dataset,
        batch_size=options.batch_size,
        shuffle=True,
        num_workers=options.workers,
        multiprocessing_context=options.start_method,
        persistent_workers=True,
    )


def start_of_epoch(
    kind: type[DataLoader[Any]], dataset: ImageFolder, options: Namespace
) -> dict[str, float]:
    """Returns seconds to the first batch, and the workers' memory after a few batches."""
    wait_until_idle()
    others, shared = set(descendants()), shared_memory_used()
    before, started = read_cpu(), time.perf_counter()
    loader = new_loader(kind, dataset, options)
    try:
        iterator = iter(loader)
        begun = time.perf_counter()
        next(iterator)
        first = time.perf_counter()
        main_cpu, worker_cpu = cpu_between(before, read_cpu())
        for _ in range(4 * options.workers):  # every worker has then processed some samples
            next(iterator)
        workers = read_workers(others)
        return {
            "iter_seconds": begun - started,
            "first_batch_seconds": first - started,
            "main_cpu_seconds": main_cpu,
            "worker_cpu_seconds": worker_cpu,
            "workers_mb": sum(memory.uss for memory in workers) / MEGABYTE,
            "shared_mb": (shared_memory_used() - shared) / MEGABYTE,
        }
    finally:
        close_loader(loader)


def saving(dataset: ImageFolder, options: Namespace) -> dict[str, float]:
    """Returns the cost of ``state_dict``, and the time to resume in the middle of the epoch."""
    with FusionLoader(dataset, options.batch_size, shuffle=True, num_workers=2) as loader:
        next(iter(loader))
        times = []
        for _ in range(_STATES):
            started = time.perf_counter()
            state = loader.state_dict()
            times.append(time.perf_counter() - started)
    state["delivered"] = len(loader) // 2
    wait_until_idle()
    resumed = new_loader(FusionLoader, dataset, options)
    before, started = read_cpu(), time.perf_counter()
    try:
        resumed.load_state_dict(state)  # type: ignore[attr-defined]
        loaded = time.perf_counter()
        next(iter(resumed))
        return {
            "state_dict_us": 1e6 * statistics.median(times),
            "state_bytes": len(json.dumps(state)),
            "load_state_dict_ms": 1e3 * (loaded - started),
            "resumed_batch_seconds": time.perf_counter() - started,
            "resumed_cpu_seconds": sum(cpu_between(before, read_cpu())),
        }
    finally:
        close_loader(resumed)


def medians(rounds: Iterable[dict[str, float]]) -> dict[str, float]:
    kept = list(rounds)
    return {name: statistics.median(each[name] for each in kept) for name in kept[0]}


def main() -> None:
    parser = parser_of(__doc__, rounds=3)
    parser.add_argument("--files", type=int, default=1_300_000, help="(1,300,000)")
    parser.add_argument("--torch-rounds", type=int, default=1, help="rounds with DataLoader (1)")
    parser.set_defaults(start_method="spawn", workers=8)
    options = parser.parse_args()
    setting, corpus = setting_of(options, "default")
    dataset = pil_dataset(setting.folder(), "default")
    assert isinstance(dataset, ImageFolder)
    figures: dict[str, dict[str, float]] = {}
    with TemporaryDirectory() as folder:
        enlarge(dataset, Path(folder), options.files)
        for kind, rounds in ((FusionLoader, options.rounds), (DataLoader, options.torch_rounds)):
            measured = [start_of_epoch(kind, dataset, options) for _ in range(rounds)]
            if measured:
                figures[kind.__name__] = medians(measured)
        figures["FusionLoader"] |= medians(saving(dataset, options) for _ in range(options.rounds))
    names = figures["FusionLoader"]
    rows = [
        (name, *(f"{found[name]:,.2f}" if name in found else "-" for found in figures.values()))
        for name in names
    ]
    publish(options, ("figure", *figures), rows, figures=figures, corpus=corpus)


if __name__ == "__main__":
    main()
