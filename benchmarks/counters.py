"""What counting costs: the clock around next(), a worker's record, and stats() itself."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
import timeit
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.study import interleaved, parser_of, publish
from fusionloader import FusionLoader, LoaderStats
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.workloads import pil_dataset
from fusionloader.observe.statistics.waits import WaitClock, Waits

ROOT = Path(__file__).parents[1]
_CALLS = 2000


class NoClock(nullcontext[None]):
    """Stands for the clock of an iterator, and counts nothing."""

    def begin_epoch(self) -> None:
        """Does nothing."""


def seconds_of(loader: DataLoader[Any], clock: Any = None) -> float:
    """Returns how long an epoch takes, without its first batch, with another clock if any."""
    iterator: Any = iter(loader)
    if clock is not None:
        iterator._clock = clock
    next(iterator)
    begun = time.perf_counter()
    for _ in iterator:
        pass
    return time.perf_counter() - begun


def ns_per_step() -> float:
    """Returns the cost of the clock for one next()."""
    clock = WaitClock(Waits(), [], lambda: None)

    def step() -> None:
        with clock:
            pass

    return fastest(step) - fastest(lambda: None)


def fastest(call: Callable[[], object]) -> float:
    """Returns the nanoseconds of a call, when nothing else runs on its core."""
    return min(timeit.repeat(call, number=_CALLS, repeat=100)) / _CALLS * 1e9


def ns_of_worker(parts: int) -> tuple[float, float]:
    """Returns the cost of a worker's record, and of a look at its processor time.

    Args:
        parts: of a plan that are timed for a sample.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/counters"
        source = ROOT / "benchmarks" / "counters.cpp"
        flags = ["-std=c++17", "-O2", f"-I{ROOT / 'csrc'}"]
        subprocess.run(["g++", *flags, str(source), "-o", program], check=True)
        printed = [subprocess.check_output([program, str(parts)]).split() for _ in range(20)]
    record, look = (min(map(float, values)) for values in zip(*printed, strict=True))
    return record, look


def ns_per_stats(loader: FusionLoader[Any]) -> float:
    """Returns the cost of a snapshot."""
    calls = []
    for _ in range(1000):
        begun = time.perf_counter_ns()
        loader.stats()
        calls.append(time.perf_counter_ns() - begun)
    return statistics.median(calls)


def ns_of_smallest_steps() -> float:
    """Returns how long a next() takes at least: one tensor from memory, in this process."""
    tensors = TensorDataset(torch.zeros(500, 3, 32, 32))
    loader: FusionLoader[Any] = FusionLoader(tensors, 1)
    return min(seconds_of(loader, NoClock()) for _ in range(10)) / (len(loader) - 1) * 1e9


def timed_parts(told: LoaderStats) -> int:
    """Returns how many parts of a sample are timed, at most: a cache and two passes beside each."""
    return sum(seconds > 0 for seconds in told.part_seconds) + 3


def main() -> None:
    options = parser_of(__doc__, rounds=15).parse_args()
    setting, corpus = setting_of(options, "default")
    loader: FusionLoader[Any] = FusionLoader(
        pil_dataset(setting.folder(), setting.workload),
        setting.batch_size,
        num_workers=setting.workers,
        persistent_workers=True,
    )
    with closing(loader):
        seconds_of(loader)
        clock: Any = loader._iterator._clock  # type: ignore[union-attr]
        epochs = interleaved(
            {
                "counted": lambda: seconds_of(loader, clock),
                "uncounted": lambda: seconds_of(loader, NoClock()),
            },
            options.rounds,
        )
        told, snapshot = loader.stats(), ns_per_stats(loader)
    step, smallest = ns_per_step(), ns_of_smallest_steps()
    sample, look = ns_of_worker(timed_parts(told))
    work = told.worker_seconds / told.samples * 1e9
    epoch = statistics.median(epochs["uncounted"]) * 1e9
    share_of_steps = step * (len(loader) - 1) / epoch
    ratios = [a / b - 1 for a, b in zip(*epochs.values(), strict=True)]
    rows = [
        ("clock, a next()", f"{step:.0f} ns", f"{share_of_steps:.4%} of the epoch"),
        (
            "clock, batches of one tensor",
            f"{step:.0f} ns",
            f"{step / smallest:.2%} of {smallest / 1e3:.0f} µs",
        ),
        ("record, a sample", f"{sample:.0f} ns", f"{sample / work:.4%} of {work / 1e6:.2f} ms"),
        ("processor time, 10 ms of a worker", f"{look:.0f} ns", f"{look / 1e7:.4%}"),
        ("clock and record", "", f"{share_of_steps + sample / work:.4%}"),
        ("stats(), a call", f"{snapshot / 1e3:.0f} µs", ""),
        (
            "epochs with the clock, without",
            f"{statistics.median(ratios):+.2%}",
            f"{min(ratios):+.2%} to {max(ratios):+.2%}",
        ),
    ]
    publish(options, ("what", "cost", "share"), rows, seconds=epochs, corpus=corpus)


if __name__ == "__main__":
    main()
