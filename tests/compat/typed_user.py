"""A user's program that `make lint` checks with mypy and with pyright, both strict.

It says what types there are; lines that have to be wrong are those whose errors are ignored, and an
error that is not there is one, too. Nothing here runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from typing_extensions import assert_type

import fusionloader.data.sources
import fusionloader.observe.trace
from fusionloader import (
    Cache,
    CompiledPlan,
    FusionLoader,
    GpuWorker,
    LoaderStats,
    Remote,
    WorkerPool,
    compile_plan,
)
from fusionloader.data.samplers import BucketSampler, MixSampler

Pair = tuple[torch.Tensor, int]


class Squares(Dataset[Pair]):
    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Pair:
        return torch.tensor(index**2), index


class Evens(FusionLoader[Pair]):
    """A loader of the user's own."""


def replaces_a_loader(loader: DataLoader[Pair]) -> int:
    return len(loader)


def construction() -> None:
    # The samples' type follows from the dataset, as in DataLoader.
    loader = FusionLoader(Squares(), batch_size=3, num_workers=2, gpu_worker=GpuWorker(threads=2))
    assert_type(loader, FusionLoader[Pair])
    assert_type(loader.dataset, Dataset[Pair])
    replaces_a_loader(loader)
    FusionLoader(Squares(), 3, True, num_workers=2, prefetch_factor=4, persistent_workers=True)
    FusionLoader(Squares(), 3, device=torch.device("cuda"), seed=0, decode="fast", strict=False)
    FusionLoader(Squares(), 3, cache=Cache("2GiB", path="cache"), jpeg_index="auto")
    FusionLoader(Squares(), 3, remote=Remote(["cpu1:7070"], offload="fastflow"), share="sweep")
    FusionLoader(Squares(), 3, remote=["cpu1:7070"], on_error="skip", stall_timeout=30)

    FusionLoader(Squares(), 3, decode="quick")  # type: ignore[arg-type]
    FusionLoader(Squares(), 3, workers=2)  # type: ignore[call-arg]
    FusionLoader(Squares(), 3, cache="2GiB")  # type: ignore[arg-type]
    FusionLoader([1, 2], 3, seed=1.5)  # type: ignore[arg-type]
    Remote("cpu1:7070", offload="none")  # type: ignore[arg-type]
    GpuWorker(sharing="sometimes")  # type: ignore[arg-type]


def iteration(loader: FusionLoader[Pair]) -> float:
    total = 0.0
    with loader as entered:
        assert_type(entered, FusionLoader[Pair])
        for batch in loader:
            assert_type(batch, Any)  # what collating makes of samples, no type says
            images, targets = batch
            total += float(images.sum() / len(targets))
    with Evens(Squares()) as own:
        assert_type(own, Evens)
    assert_type(len(loader), int)
    return total


def explanation(loader: FusionLoader[Pair]) -> None:
    assert_type(loader.explain(), str)
    stats = loader.stats()
    assert_type(stats, LoaderStats)
    assert_type(stats.wait_share, float | None)
    assert_type(stats.batches, int)
    assert_type(stats.as_dict(), dict[str, object])
    for name, value in stats.scalars().items():
        assert_type(name, str)
        assert_type(value, int | float)
    stats.batches = 3  # type: ignore[misc]
    print(stats.throughput)  # type: ignore[attr-defined]


def resumption(loader: FusionLoader[Pair], saved: list[dict[str, Any]]) -> None:
    state = loader.state_dict()
    assert_type(state, dict[str, Any])
    loader.load_state_dict(state)
    loader.load_state_dict(saved, ranks="reshard")
    loader.load_state_dict(state, ranks="other")  # type: ignore[arg-type]
    loader.set_epoch(1)
    loader.set_epoch("1")  # type: ignore[arg-type]
    loader.resize_workers(4)
    loader.close()


def workers_of_several() -> None:
    with WorkerPool(8) as pool:
        assert_type(pool, WorkerPool)
        FusionLoader(Squares(), 3, pool=pool)
        FusionLoader(Squares(), 3, pool=pool.background())
    FusionLoader(Squares(), 3, pool=8)  # type: ignore[arg-type]


def batches_by_rule(lengths: list[int]) -> None:
    buckets = BucketSampler(lengths, max_tokens=4096, seed=1)
    FusionLoader(Squares(), batch_sampler=buckets)
    mixed = MixSampler({"a": 10, "b": 20}, {"a": 0.5, "b": 0.5}, batch_size=4)
    FusionLoader(Squares(), batch_sampler=mixed)
    assert_type(mixed.samples_per_epoch, dict[str, int])
    for batch in buckets:
        assert_type(batch, list[int])
    MixSampler({"a": 10}, {"a": 1.0})  # type: ignore[call-arg]


def plans(transform: Any) -> None:
    plan = compile_plan(transform, decode="exact")
    assert_type(plan, CompiledPlan)
    assert_type(plan.explain(), str)


def names_that_are_not_there() -> None:
    print(fusionloader.FusionLoder)  # type: ignore[attr-defined]
    print(fusionloader.data.sources.TarFolders)  # type: ignore[attr-defined]
    print(fusionloader.observe.trace.read_timelines)  # type: ignore[attr-defined]
