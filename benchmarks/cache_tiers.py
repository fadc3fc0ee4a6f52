"""What a cache keeps by itself against each fixed choice, and against no cache."""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.quiet import Quiet
from benchmarks.study import parser_of, publish
from benchmarks.throttle import Throttle, throttled
from fusionloader import Cache, FusionLoader
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.report import announce, table
from fusionloader.cli.measure.workloads import pil_dataset
from fusionloader.system.amounts import parse_bytes

CHOICES: dict[str, tuple[Any, ...] | None] = {
    "none": None,
    "encoded": ("index", "encoded"),
    "decoded": ("index", "decoded"),
    "chosen": ("index", "encoded", "decoded"),
}
FIXED = ("none", "encoded", "decoded")
FILLING = 2  # epochs before the first that is measured
HEADER = (
    "storage", "budget", "none s", "encoded s", "decoded s", "chosen s", "times best fixed",
    "times none", "kept decoded",
)  # fmt: skip


def loader_of(dataset: Any, options: Any, tiers: Any, budget: int) -> FusionLoader[Any]:
    return FusionLoader(
        dataset,
        options.batch_size,
        shuffle=True,
        num_workers=options.workers,
        persistent_workers=True,
        multiprocessing_context="spawn",  # workers load the library that throttles
        generator=torch.Generator().manual_seed(11),
        cache=None if tiers is None else Cache(budget, tiers=tiers),
    )


def epoch_seconds(loader: Any) -> float:
    started = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - started


class Case:
    """The loaders of one storage and one budget, filled."""

    def __init__(self, dataset: Any, options: Any, throttle: Throttle, rate: float, budget: int):
        self._throttle, self.rate, self.budget = throttle, rate, budget
        # Caches of the same files are one, unless they have nothing to do with each other.
        self._runtime = tempfile.TemporaryDirectory()
        os.environ["XDG_RUNTIME_DIR"] = self._runtime.name
        self.loaders = {
            name: loader_of(dataset, options, tiers, budget) for name, tiers in CHOICES.items()
        }
        self.seconds: dict[str, list[float]] = {name: [] for name in CHOICES}
        throttle.set_rate(rate)
        for loader in self.loaders.values():
            for _ in range(FILLING):
                epoch_seconds(loader)

    def measure(self, quiet: Quiet) -> None:
        """Measures an epoch of each, one after the other."""
        self._throttle.set_rate(self.rate)
        for name, loader in self.loaders.items():
            self.seconds[name].append(quiet.run(lambda loader=loader: epoch_seconds(loader))[0])

    def close(self) -> None:
        """Ends the workers."""
        for loader in self.loaders.values():
            loader.close()

    def row(self) -> tuple[str, ...]:
        """Returns the medians until now."""
        median = {name: statistics.median(found) for name, found in self.seconds.items()}
        best = min(median[name] for name in FIXED)
        cache = self.loaders["chosen"].stats().cache
        assert cache is not None
        kept = {name: cache.tiers[name].images for name in ("encoded", "decoded")}
        return (
            f"{self.rate / 1e6:.0f} MB/s" if self.rate else "memory",
            f"{self.budget / 2**20:.0f} MiB",
            *(f"{median[name]:.3f}" for name in CHOICES),
            f"{median['chosen'] / best:.3f}",
            f"{median['none'] / median['chosen']:.2f}",
            f"{kept['decoded'] / max(1, sum(kept.values())):.0%}",
        )


def torch_ratio(dataset: Any, options: Any, rounds: int, quiet: Quiet) -> dict[str, float]:
    """Returns torch's seconds of an epoch and those with everything kept decoded, from memory."""
    cached = loader_of(dataset, options, ("decoded",), parse_bytes("8GiB"))
    plain = DataLoader(
        dataset, options.batch_size, shuffle=True, num_workers=options.workers,
        persistent_workers=True,
    )  # fmt: skip
    loaders = {"torch": plain, "all decoded": cached}
    found: dict[str, list[float]] = {name: [] for name in loaders}
    for loader in loaders.values():
        epoch_seconds(loader)
    for _ in range(rounds):
        for name, loader in loaders.items():
            found[name].append(quiet.run(lambda loader=loader: epoch_seconds(loader))[0])
    cached.close()
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--rates", default="0,50MB,200MB", help="of storage, a second; 0: memory")
    parser.add_argument("--budgets", default="150MiB,600MiB", help="of the caches")
    parser.add_argument("--patience", type=float, default=0, help="seconds to wait for quiet (0)")
    options = parser.parse_args()
    setting, corpus = setting_of(options, "default")
    dataset = pil_dataset(setting.folder(), "default")
    quiet = Quiet(options.patience)
    rates = [float(parse_bytes(rate)) if rate != "0" else 0.0 for rate in options.rates.split(",")]
    budgets = [parse_bytes(budget) for budget in options.budgets.split(",")]
    rows = []
    with (
        tempfile.TemporaryDirectory() as folder,
        throttled(setting.folder(), Path(folder)) as throttle,
    ):
        for rate, budget in itertools.product(rates, budgets):
            case = Case(dataset, options, throttle, rate, budget)
            for _ in range(options.rounds):
                case.measure(quiet)
            rows.append(case.row())
            case.close()
            announce(table(HEADER, rows))
    against = torch_ratio(dataset, options, options.rounds, quiet)
    worst = max(float(row[6]) for row in rows)
    publish(options, HEADER, rows, corpus=corpus, worst_of_chosen=worst, torch=against)
    print(f"chosen at worst {worst:.3f} of the best fixed choice; all decoded "
          f"{against['torch'] / against['all decoded']:.1f} times torch")  # fmt: skip


if __name__ == "__main__":
    main()
