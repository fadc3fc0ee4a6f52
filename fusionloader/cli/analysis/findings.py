"""What an analysis has found of a training's loaders."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from fusionloader.cli.analysis.phases import Phase, PhaseResult
from fusionloader.cli.analysis.probes import samples_of, steps_of
from fusionloader.cli.analysis.ranks import AnalyzedRanks
from fusionloader.cli.analysis.service import SampleService
from fusionloader.cli.analysis.watched import WatchedProgress
from fusionloader.loader import FusionLoader
from fusionloader.options.aliases import AnyLoader
from fusionloader.options.cache_settings import Cache

_USUAL_PREFETCH = 2


@dataclass(frozen=True, slots=True)
class LoaderShape:
    """The arguments of a loader that its speed depends on.

    Attributes:
        samples: length of the dataset; ``None`` where it has none.
        steps: mini-batches of an epoch; ``None`` where that is not known.
        batch_size: samples of a mini-batch.
        workers: processes.
        prefetch_factor: mini-batches that are made ahead, for each worker.
        tiny_batch_size: samples that a worker claims; ``None`` where it makes whole mini-batches.
        on_device: whether training uses a CUDA device, and so runs ahead of it.
        cores: cores that this process and its workers may use beside other ranks.
        memory_bytes: memory of the machine, in bytes.
        cache_bytes: budget of the loader's decoded cache, 0 without one.
        jpeg_index: whether the loader has one.
        ranks: number of ranks that share the machine and its storage.
    """

    samples: int | None
    steps: int | None
    batch_size: int
    workers: int
    prefetch_factor: int
    tiny_batch_size: int | None
    on_device: bool
    cores: float
    memory_bytes: int
    cache_bytes: int
    jpeg_index: bool
    ranks: int = 1

    @staticmethod
    def of(loader: AnyLoader, batch_size: int, ranks: AnalyzedRanks) -> LoaderShape:
        """Returns that of a loader whose mini-batches have so many samples."""
        return LoaderShape(
            samples_of(loader),
            steps_of(loader),
            batch_size,
            loader.num_workers,
            loader.prefetch_factor or _USUAL_PREFETCH,
            loader.tiny_batch_size if isinstance(loader, FusionLoader) else None,
            torch.cuda.is_initialized(),  # type: ignore[no-untyped-call]
            ranks.cores,
            os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            _decoded_bytes(getattr(loader, "cache", None)),
            getattr(loader, "jpeg_index", None) is not None,
            ranks.sharing,
        )


def _decoded_bytes(cache: Cache | None) -> int:
    if cache is None or "decoded" not in cache.tiers:
        return 0
    return cache.memory_bytes + cache.disk_bytes


@dataclass(frozen=True, slots=True)
class LoaderFindings:
    """What was measured on one loader.

    Attributes:
        place: line of the script that makes it.
        kind: the name of its class.
        phases: results, those that could be measured.
        skipped: why phases were not.
        shape: ``None`` where the script ended too early, as is ``service``.
        service: what its samples cost.
        cached_share: fraction of the files, 0 to 1, that the file cache held in ``Phase.COLD``.
        ranks: what each rank has found, in a job of several; the rest is then that of the job, with
            shape and service of the rank that waits most for its own data.
    """

    place: str
    kind: str
    phases: Mapping[Phase, PhaseResult]
    skipped: Mapping[Phase, str] = field(default_factory=dict)
    shape: LoaderShape | None = None
    service: SampleService | None = None
    cached_share: float = 0.0
    ranks: tuple[LoaderFindings, ...] = ()

    @property
    def title(self) -> str:
        """A name for people."""
        return f"{self.kind} made at {self.place}"

    def waited(self, phase: Phase) -> float:
        """Seconds that training waited for its data in a phase; 0 if that was not measured."""
        found = self.phases.get(phase)
        return found.waited if found else 0.0


def of_job(ranks: Sequence[LoaderFindings], phases: Mapping[Phase, PhaseResult]) -> LoaderFindings:
    """Returns the findings of a job on one loader; ``phases`` are those of all ranks together."""
    slowest = max(ranks, key=lambda each: each.waited(Phase.TODAY))
    return replace(slowest, phases=phases, ranks=tuple(ranks))


def partial(progress: WatchedProgress) -> LoaderFindings:
    """Returns what is known of a loader on which the script did not do enough steps."""
    phases = dict(progress.results)
    for phase, window in progress.windows.items():
        if window.result is not None:
            phases[phase] = window.result
    skipped = {
        phase: progress.skipped.get(phase, f"the script ended after {progress.steps} steps")
        for phase in Phase
        if phase not in phases
    }
    return LoaderFindings(progress.place, progress.kind, phases, skipped)
