"""What samples of a loader cost, measured beside training: by worker, by file, with options."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fusionloader.cli.analysis import files
from fusionloader.cli.analysis.drains import Drain, drain
from fusionloader.cli.analysis.files import FilePart, ReadRates
from fusionloader.cli.analysis.probes import CyclicBatches, MiniBatch, like
from fusionloader.cli.analysis.ranks import AnalyzedRanks
from fusionloader.data.sources.datasets import compile_dataset
from fusionloader.data.sources.plan_source import PlanSource
from fusionloader.loader import FusionLoader
from fusionloader.options.aliases import AnyLoader, Index
from fusionloader.options.cache_settings import DecodedCache
from fusionloader.transforms.executors.python import SampleKey

_PROBED_CACHE = "2GiB"  # for the few samples of a probe
_KEPT = 0.9  # of the probe's samples, that a cache has to hold to be measured
READERS = 8
_TIMED = 200  # samples, one by one
_WARM_UP = 5
_WAITS, _WAIT = 200, 5e-4  # about as long as for a file


class SampleCost(NamedTuple):
    """What one sample costs.

    Attributes:
        nbytes: bytes that it takes of files.
        seconds: seconds of a core.
        waiting: seconds that its code waits without a core, such as for a database.
    """

    nbytes: int
    seconds: float
    waiting: float


@dataclass(slots=True)
class SampleService:
    """What a loader's samples cost.

    Attributes:
        warm: time with its present workers and files in memory.
        alone: the same with one worker; ``None`` where that is what it has.
        reads: reading by itself; ``None`` without files.
        costs: costs of samples that were made one by one.
        wake_seconds: time from the end of a wait until the waiting process runs.
        cached: time with decoded images in memory; ``None`` where that is not possible.
        indexed: time with a JPEG index; ``None`` where that is not possible.
        fused: time with ``FusionLoader`` instead of torch's loader; ``None`` where it is one.
    """

    warm: Drain
    alone: Drain | None = None
    reads: ReadRates | None = None
    costs: list[SampleCost] = field(default_factory=list)
    wake_seconds: float = 0.0
    cached: Drain | None = None
    indexed: Drain | None = None
    fused: Drain | None = None


def measure_service(
    loader: AnyLoader,
    mini_batches: Sequence[MiniBatch],
    samples_parts: Mapping[Index, Sequence[FilePart]],
    seconds: float,
    ranks: AnalyzedRanks,
) -> SampleService:
    """Measures a loader on a few mini-batches, each option for so many seconds.

    All ranks measure the same at the same time, beside each other as they train.

    Args:
        loader: the user's, none of whose workers run.
        mini_batches: empty for an ``IterableDataset``.
        samples_parts: what each of their samples takes of files.
        seconds: duration of each measurement.
        ranks: those that call this.
    """
    parts = list(dict.fromkeys(part for each in samples_parts.values() for part in each))
    files.warm(parts)

    def of(settle: int = 0, **changes: Any) -> Drain:
        probe = like(loader, _cyclic(mini_batches), **changes)
        ranks.meet("samples", None)
        return drain(probe, seconds, settle)

    possible = _possible(loader, parts)
    possible.intersection_update(*ranks.meet("what can be measured", possible))
    found = SampleService(of())
    if "alone" in possible:
        found.alone = of(num_workers=1)
    if mini_batches:
        found.costs = sample_costs(loader, files.sizes_of(samples_parts))
    if parts:
        found.reads = files.read_rates(parts, READERS)
        found.wake_seconds = wake_seconds()
    if "fused" in possible:
        found.fused = of(kind=FusionLoader)
    if "cached" in possible:
        cached = of(len(mini_batches), cache=DecodedCache(_PROBED_CACHE))
        found.cached = cached if cached.hit_share >= _KEPT else None
    if "indexed" in possible:
        found.indexed = of(len(mini_batches), jpeg_index="auto")
    return found


def _possible(loader: AnyLoader, parts: Sequence[FilePart]) -> set[str]:
    """Returns the names of the measurements that this loader allows, beside that of its workers."""
    names = {"alone"} if loader.num_workers > 1 else set()
    if not isinstance(loader, FusionLoader):
        names.add("fused")
    elif parts and loader.num_workers and loader.decode == "exact" and loader.strict:
        names.add("cached")
        if any(map(files.is_jpeg, parts)):
            names.add("indexed")
    return names


def _cyclic(mini_batches: Sequence[MiniBatch]) -> CyclicBatches | None:
    return CyclicBatches(mini_batches) if mini_batches else None


def sample_costs(loader: AnyLoader, sizes: Mapping[Index, int]) -> list[SampleCost]:
    """Times samples one by one in this process, whose generators stay as they are."""
    dataset = loader.dataset
    indices = list(sizes)[:_TIMED]
    compiled = compile_dataset(dataset)
    source = None
    if isinstance(loader, FusionLoader) and compiled.complete:
        source = PlanSource(dataset, compiled, in_worker=False)
    costs = []
    with torch.random.fork_rng(devices=[]), _one_thread():
        for number, index in enumerate([*indices[:_WARM_UP], *indices]):
            began, started, delayed = time.perf_counter(), time.thread_time(), _run_delay()
            if source is None:
                dataset[index]
            else:
                source.load(SampleKey(index, 0, 0, number, 0))
            seconds, delay = time.thread_time() - started, _run_delay() - delayed
            waiting = time.perf_counter() - began - seconds - delay
            costs.append(SampleCost(sizes[index], seconds, max(0.0, waiting)))
    return costs[min(_WARM_UP, len(indices)) :]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Has torch compute in one thread, as it does in a worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run_delay() -> float:
    """Returns the seconds for which this thread has waited for a core."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):  # a kernel without it
        return 0.0


def wake_seconds() -> float:
    """Returns how much later than it asked for a process that waits goes on, on average."""
    started = time.perf_counter()
    for _ in range(_WAITS):
        time.sleep(_WAIT)
    return (time.perf_counter() - started) / _WAITS - _WAIT
