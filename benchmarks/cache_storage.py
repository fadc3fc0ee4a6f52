"""Epochs with caches of a part of the files, on storage of a known rate, against equation (2).

The paper: Analyzing and Mitigating Data Stalls in DNN Training (PVLDB 14(5)), §5 and §6.1.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cache_tiers import epoch_seconds, loader_of
from benchmarks.study import parser_of, publish
from benchmarks.throttle import throttled
from fusionloader.cache.tiers.file_store import table_bytes
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.report import announce
from fusionloader.cli.measure.workloads import pil_dataset
from fusionloader.system.amounts import parse_bytes

TIERS = ("encoded",)
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
PAGE = 4096
HEADER = ("cache", "items", "misses an epoch", "seconds", "equation (2)", "error")


def budget_of(share: float, sizes: list[int]) -> int:
    """Returns the bytes that keep such a share of the files."""
    if not share:
        return 0
    data = sum(-(-size // 64) * 64 for size in sizes)
    return int(share * data) + table_bytes(len(sizes)) + 3 * PAGE


class Kept:
    """Epochs with a share of the files in the cache."""

    def __init__(self, dataset: Any, options: Any, budget: int) -> None:
        # Caches of the same files are one, unless they have nothing to do with each other.
        self._runtime = tempfile.TemporaryDirectory()
        self.loader = loader_of(dataset, options, TIERS if budget else None, budget)
        self.seconds: list[float] = []
        self.misses: list[int] = []

    def epoch(self, count: bool = True) -> None:
        """Runs one epoch; the first ones are not counted."""
        os.environ["XDG_RUNTIME_DIR"] = self._runtime.name
        seconds = epoch_seconds(self.loader)
        cache = self.loader.stats().cache
        if count:
            self.seconds.append(seconds)
            self.misses.append(len(self.loader.dataset) if cache is None else cache.epoch_misses)

    @property
    def fetch_rate(self) -> float:
        """Samples per second that its workers could fetch, if that were all they do."""
        return {stage.name: stage.capacity for stage in self.loader.stats().stages}["read"]

    @property
    def items(self) -> int:
        """Files in the cache."""
        cache = self.loader.stats().cache
        return 0 if cache is None else cache.tiers["encoded"].images


def measured(options: Any, sizes: list[int], setting: Any) -> list[Kept]:
    """Measures with a reader that waits as slow storage would, rounds interleaved."""
    dataset = pil_dataset(setting.folder(), "default")
    with (
        tempfile.TemporaryDirectory() as folder,
        throttled(setting.folder(), Path(folder)) as throttle,
    ):
        kept = [Kept(dataset, options, budget_of(share, sizes)) for share in SHARES]
        for each in kept:
            each.epoch(count=False)
        throttle.set_rate(float(parse_bytes(options.rate)))
        for number in range(options.rounds):
            for each in kept:
                each.epoch()
            announce(f"round {number + 1}/{options.rounds}")
        for each in kept:
            each.loader.close()
    return kept


def rows_of(ours: list[Kept], count: int) -> list[tuple[str, ...]]:
    """Compares each setting with equation (2): fetching, or preparation where that takes longer.

    Storage is as fast as the first setting shows, which has no cache, the cache as workers of the
    last one fetch from it, which has everything.
    """
    median: Callable[[Kept], float] = lambda each: statistics.median(each.seconds)  # noqa: E731
    storage, prepared = count / median(ours[0]), median(ours[-1])
    cached = ours[-1].fetch_rate
    rows = []
    for each in ours:
        share = each.items / count
        fetching = count * share / cached + count * (1 - share) / storage
        seconds = max(fetching, prepared)
        assert set(each.misses) == {count - each.items}, (each.misses, each.items)
        rows.append((
            f"{share:.0%}", str(each.items), str(each.misses[0]), f"{median(each):.3f}",
            f"{seconds:.3f}", f"{median(each) / seconds - 1:+.1%}",
        ))  # fmt: skip
    return rows


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--rate", default="50MB", help="of storage, a second (50MB)")
    options = parser.parse_args()
    setting, corpus = setting_of(options, "default")
    paths = [path for path, _ in pil_dataset(setting.folder(), "default").samples]
    sizes = [Path(path).stat().st_size for path in paths]
    rows = rows_of(measured(options, sizes, setting), len(sizes))
    largest = max(abs(float(row[5].rstrip("%"))) for row in rows)
    publish(options, HEADER, rows, corpus=corpus, largest_error_percent=largest)
    print(f"largest error {largest:.1f} %")


if __name__ == "__main__":
    main()
