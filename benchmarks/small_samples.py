"""Is a loader of small samples ever slower than torch's? Construction and first batch included.

A cell is the time of DataLoader divided by that of FusionLoader for an epoch, or the first batches
of a long one, with a new loader each time.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, StackDataset, TensorDataset

from benchmarks.study import interleaved, parser_of, publish
from fusionloader import FusionLoader


class OwnRows(Dataset[Any]):
    """A dataset of the user's: Python code for each sample."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[index] * 2, index


def _stack(**tensors: Any) -> StackDataset[Any]:
    return StackDataset(**tensors)


KINDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "TensorDataset": lambda data: TensorDataset(data, torch.arange(len(data))),
    "dicts": lambda data: _stack(row=data, label=torch.arange(len(data))),
    "scalars": lambda data: TensorDataset(torch.arange(len(data))),
    "own code": OwnRows,
}


def seconds(dataset: Any, batches: int, kind: type[DataLoader[Any]], **options: Any) -> float:
    """Returns what so many batches take, the making of the loader included."""
    began = time.perf_counter()
    iterator = iter(kind(dataset, shuffle=True, **options))
    for _ in itertools.islice(iterator, batches):
        pass
    taken = time.perf_counter() - began
    del iterator
    return taken


def numbers(text: str) -> list[int]:
    """Parses ``0,1,2``."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--num-workers", type=numbers, default=[0, 1, 2], help="(0,1,2)")
    parser.add_argument("--lengths", type=numbers, default=[100, 4096, 100_000])
    parser.add_argument("--batch-sizes", type=numbers, default=[1, 8, 64, 256, 1024])
    parser.add_argument("--most", type=int, default=400, help="batches of an epoch (400)")
    options = parser.parse_args()
    rows, figures = [], []
    cells = itertools.product(options.kinds.split(","), options.num_workers, options.lengths)
    for name, workers, length in cells:
        dataset = KINDS[name](torch.randn(length, 3))
        ratios = []
        for size in options.batch_sizes:
            batches = min(options.most, -(-length // size))
            epoch = partial(seconds, dataset, batches, batch_size=size, num_workers=workers)
            kinds = (DataLoader, FusionLoader)
            measured = interleaved(
                {kind.__name__: partial(epoch, kind) for kind in kinds}, options.rounds
            )
            medians = {kind: statistics.median(values) for kind, values in measured.items()}
            ratios.append(medians["DataLoader"] / medians["FusionLoader"])
            figures.append((name, workers, length, size, medians, ratios[-1]))
        rows.append([name, str(workers), f"{length:,}", *(f"{ratio:.2f}" for ratio in ratios)])
        print(*rows[-1], flush=True)
    names = ("dataset", "workers", "samples", "batch_size", "seconds", "ratio")
    header = ("dataset", "workers", "samples", *map(str, options.batch_sizes))
    publish(options, header, rows, cells=[dict(zip(names, each, strict=True)) for each in figures])


if __name__ == "__main__":
    main()
