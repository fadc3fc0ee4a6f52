"""What does one sample in a hundred cost that takes fifty times as long?

A sample of user code waits for 2 ms, as for storage, a slow one for 100 ms. Both loaders deliver in
order and out of order. ``busy`` is the share of the workers' time that went into samples: with all
of it, ``samples/s`` would be the workers divided by the mean time of a sample.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.study import interleaved, parser_of, publish
from fusionloader import FusionLoader
from fusionloader.cli.measure.contenders import close_loader

EVERY, TIMES = 100, 50  # one slow sample in so many, and how many times as long it takes


class Waiting(Dataset[torch.Tensor]):
    """Samples that wait; which are slow is the same in each epoch."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds * (TIMES if index % EVERY == 7 else 1))
        return torch.full((8,), index)


def epochs(loader: Any) -> Callable[[], float]:
    """Returns a function that returns samples per second of an epoch."""

    def once() -> float:
        began, samples = time.perf_counter(), 0
        for batch in loader:
            samples += len(batch)
        return samples / (time.perf_counter() - began)

    once()  # workers start
    return once


def main() -> None:
    parser = parser_of(__doc__.splitlines()[0] if __doc__ else None, rounds=5)
    parser.add_argument("--count", type=int, default=4000, help="samples of an epoch (4000)")
    parser.add_argument("--milliseconds", type=float, default=2.0, help="of a sample (2)")
    options = parser.parse_args()
    dataset = Waiting(options.count, options.milliseconds / 1e3)
    loaders = {
        f"{name}, {'in' if in_order else 'out of'} order": kind(
            dataset,
            options.batch_size,
            shuffle=True,
            num_workers=options.workers,
            in_order=in_order,
            persistent_workers=True,
        )
        for in_order in (True, False)
        for name, kind in {"torch": DataLoader, "fusionloader": FusionLoader}.items()
    }
    rates = interleaved({name: epochs(each) for name, each in loaders.items()}, options.rounds)
    for loader in loaders.values():
        close_loader(loader)
    slow = len(range(7, options.count, EVERY)) / options.count
    mean = options.milliseconds / 1e3 * (1 + slow * (TIMES - 1))
    rows, figures = [], {}
    for name, values in rates.items():
        rate = statistics.median(values)
        ratio = statistics.median(
            ours / theirs for ours, theirs in zip(values, rates["torch, in order"], strict=True)
        )
        busy = rate * mean / options.workers
        rows.append((name, f"{rate:,.0f}", f"{ratio:.2f}", f"{busy:.0%}"))
        figures[name] = {"samples_per_second": rate, "ratio": ratio, "busy": busy, "rates": values}
    publish(options, ("loader", "samples/s", "x", "busy"), rows, loaders=figures)


if __name__ == "__main__":
    main()
