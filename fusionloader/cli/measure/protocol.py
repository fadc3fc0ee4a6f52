"""The protocol: contenders alternate, one uncounted epoch each, medians and per-round ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fusionloader.cli.measure.processes import (
    ProcessMemory,
    cpu_between,
    descendants,
    read_cpu,
    read_workers,
    shared_memory_used,
    wait_until_idle,
)

NOISY_SPREAD = 0.15


class Running:
    """A contender that has been set up; a call of ``epoch`` delivers the dataset once."""

    def __init__(self, epoch: Callable[[], Iterator[int]], close: Callable[[], None]) -> None:
        self.epoch = epoch
        self.close = close


@dataclass(frozen=True, slots=True)
class Contender:
    """A loader to measure; ``start`` sets it up, ``limit`` marks a limit, which is no loader.

    An epoch yields the number of samples of every batch as it is delivered.
    """

    name: str
    description: str
    start: Callable[[], Running]
    limit: bool = False


@dataclass(frozen=True, slots=True)
class Epoch:
    """One measured epoch. Seconds are of wall time unless their name says CPU.

    ``first_batch`` is the time from the start of the epoch to its first batch, ``steady`` from
    there to the last one, ``total`` the whole. ``counted`` samples were delivered in ``steady``.
    """

    samples: int
    counted: int
    first_batch: float
    steady: float
    total: float
    cpu_main: float
    cpu_workers: float

    @property
    def rate(self) -> float:
        """Samples per second between the first and the last batch."""
        if self.counted == 0:  # a single batch, or a limit without batches
            return self.samples / self.total
        return self.counted / self.steady

    @property
    def whole_rate(self) -> float:
        """Samples per second over the whole epoch, its start included."""
        return self.samples / self.total

    @property
    def cpu_per_1000(self) -> float:
        """CPU seconds of all processes per 1,000 samples."""
        return (self.cpu_main + self.cpu_workers) / self.samples * 1000


@dataclass(slots=True)
class Result:
    """The measurements of one contender."""

    contender: Contender
    cold_first_batch: float = 0.0
    epochs: list[Epoch] = field(default_factory=list)
    workers: list[ProcessMemory] = field(default_factory=list)
    shared_bytes: int = 0

    def median(self, of: Callable[[Epoch], float]) -> float:
        """Returns the median of a figure over the counted epochs."""
        return statistics.median(of(epoch) for epoch in self.epochs)

    @property
    def spread(self) -> float:
        """The range of the counted epochs' rates as a share of their median."""
        rates = [epoch.rate for epoch in self.epochs]
        return (max(rates) - min(rates)) / statistics.median(rates)

    @property
    def noisy(self) -> bool:
        """Whether the epochs differ so much that the measurement has to be repeated."""
        return self.spread > NOISY_SPREAD


def per_round_ratios(result: Result, baseline: Result) -> list[float]:
    """Returns the rates as multiples of the baseline's in the same round."""
    return [
        ours.rate / theirs.rate for ours, theirs in zip(result.epochs, baseline.epochs, strict=True)
    ]


def measure(
    contenders: Sequence[Contender],
    rounds: int,
    *,
    retries: int = 1,
    announce: Callable[[str], None] = lambda text: None,
) -> tuple[list[Result], int]:
    """Measures ``rounds`` epochs of every contender, interleaved; returns results and repetitions.

    All contenders stay set up, with their workers idle, while another one is measured. If the
    epochs of one differ by more than ``NOISY_SPREAD``, all rounds are measured again, at most
    ``retries`` times, and the last measurement counts.
    """
    running: list[Running] = []
    results = []
    try:
        for contender in contenders:
            announce(f"{contender.name}: set-up and uncounted epoch")
            wait_until_idle()
            before = set(descendants())
            shared = shared_memory_used()
            result = Result(contender)
            asked = time.perf_counter()
            running.append(contender.start())
            _cold_epoch(running[-1], result, asked, before)
            result.shared_bytes = max(0, shared_memory_used() - shared)
            results.append(result)
        for attempt in range(retries + 1):
            for result in results:
                result.epochs.clear()
            _rounds(running, results, rounds, announce)
            noisy = [result.contender.name for result in results if result.noisy]
            if not noisy or attempt == retries:
                return results, attempt
            announce(f"epochs of {', '.join(noisy)} differ too much: measuring again")
    finally:
        for contender_running in running:
            contender_running.close()
    raise ValueError(f"retries must be 0 or more, not {retries}")


def _cold_epoch(running: Running, result: Result, asked: float, before: set[int]) -> None:
    """Runs the uncounted epoch: measures the cold first batch, and workers' memory at its end."""
    for number, _ in enumerate(running.epoch()):
        if number == 0:
            result.cold_first_batch = time.perf_counter() - asked
        # Read while the workers run: some loaders end theirs with the epoch.
        if number == 1:
            result.workers = read_workers(before)
    result.workers = read_workers(before) or result.workers


def _rounds(
    running: list[Running], results: list[Result], rounds: int, announce: Callable[[str], None]
) -> None:
    for number in range(rounds):
        for contender, result in zip(running, results, strict=True):
            wait_until_idle()
            result.epochs.append(timed_epoch(contender))
            announce(
                f"round {number + 1}/{rounds}: {result.contender.name} "
                f"{result.epochs[-1].rate:,.0f} samples/s"
            )


def timed_epoch(running: Running) -> Epoch:
    """Runs one epoch and returns its measurements."""
    cpu_before = read_cpu()
    samples = counted = 0
    started = time.perf_counter()
    first = last = started
    for size in running.epoch():
        last = time.perf_counter()
        if samples == 0:
            first = last
        else:
            counted += size
        samples += size
    total = time.perf_counter() - started
    cpu_main, cpu_workers = cpu_between(cpu_before, read_cpu())
    if samples == 0:
        raise RuntimeError("the epoch delivered no batch: nothing to measure")
    return Epoch(samples, counted, first - started, last - first, total, cpu_main, cpu_workers)
