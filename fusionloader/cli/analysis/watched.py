"""One loader of a training under analysis: phase after phase, over all its iterators."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from fusionloader.cli.analysis import files
from fusionloader.cli.analysis.files import FileCacheLimit, FilePart
from fusionloader.cli.analysis.loader_processors import LoaderProcessors
from fusionloader.cli.analysis.phases import MeasuredWindow, Phase, PhaseResult
from fusionloader.cli.analysis.probes import (
    CyclicBatches,
    MiniBatch,
    end,
    first_mini_batches,
    forever,
    like,
    samples_of,
    steps_of,
)
from fusionloader.cli.analysis.ranks import AnalyzedRanks, together
from fusionloader.cli.analysis.replay import Replay, batch_length
from fusionloader.data.sources.datasets import compile_dataset
from fusionloader.options.aliases import AnyLoader, Batch, Index

T = TypeVar("T")

_PROBED_SAMPLES = 256
_FEWEST_BATCHES = 4
_FEWEST_STEPS = 5  # of a window, before ranks ask each other whether it is done
_REST_SECONDS = 5.0  # of training on one batch, so that an epoch has all its steps


@dataclass(slots=True)
class WatchedProgress:
    """What is known of a loader so far; outlives it where the script runs once more.

    Attributes:
        place: line of the script that makes the loader.
        kind: the name of its class.
        results: results of the measured phases.
        job: the same of all ranks together.
        windows: their steps so far.
        skipped: why phases could not be, by phase.
        steps: steps of training on it.
        cached_share: fraction of the files, 0 to 1, that the file cache holds in ``Phase.COLD``.
    """

    place: str
    kind: str
    results: dict[Phase, PhaseResult] = field(default_factory=dict)
    job: dict[Phase, PhaseResult] = field(default_factory=dict)
    windows: dict[Phase, MeasuredWindow] = field(default_factory=dict)
    skipped: dict[Phase, str] = field(default_factory=dict)
    steps: int = 0
    cached_share: float = 0.0

    @property
    def used(self) -> bool:
        """Whether training was done on it, not just a batch looked at."""
        return self.steps > 1

    @property
    def left(self) -> list[Phase]:
        """The phases that are still to be measured."""
        return [each for each in Phase if each not in self.results and each not in self.skipped]


class WatchedLoader:
    """Decides where the next batch of a loader comes from."""

    def __init__(
        self,
        loader: AnyLoader,
        progress: WatchedProgress,
        seconds: float,
        measured: Callable[[WatchedLoader], None],
        announce: Callable[[str], None],
        file_cache: FileCacheLimit,
        ranks: AnalyzedRanks,
    ) -> None:
        """``measured`` is called as soon as no phase is left; ``seconds`` are of each window.

        In ``Phase.COLD`` the file cache holds ``file_cache``.
        """
        self._announce, self._file_cache, self._ranks = announce, file_cache, ranks
        self.loader, self.progress = loader, progress
        self._seconds, self._measured = seconds, measured
        self._window: MeasuredWindow | None = None
        self._next_look = 0  # steps of the window, after which ranks ask each other
        self._replay: Replay | None = None
        self._probe: AnyLoader | None = None
        self._batches: Iterator[Batch] | None = None
        self.mini_batches: list[MiniBatch] = []
        self.parts: dict[Index, list[FilePart]] = {}
        self._parts: list[FilePart] = []
        self._dropped: set[Index] = set()
        self._processors: LoaderProcessors | None = None

    @property
    def replayed_samples(self) -> int | None:
        """Samples of the batch that is replayed; ``None`` where they cannot be counted."""
        return None if self._replay is None else self._replay.samples

    @property
    def finished(self) -> bool:
        """Whether all phases are measured."""
        return not self.progress.left

    def advance(self) -> None:
        """Ends the window if it has enough steps, and begins that of the next phase."""
        window = self._window
        if window is not None and self._all_done(window):
            if window.phase is Phase.TODAY and self._processors is not None:
                window.processors = replace(self._processors.use(), cores=self._ranks.cores)
            self.close()
            self._keep_result(window)
            if self.finished:
                self._measured(self)
        while self._window is None and not self.finished:
            self._begin(self.progress.left[0])

    def _may_be_done(self, window: MeasuredWindow) -> bool:
        return window.done if self._ranks.count == 1 else window.steps >= self._next_look

    def _all_done(self, window: MeasuredWindow) -> bool:
        """Whether all ranks have enough steps; they seldom ask, since they wait for each other."""
        if not self._may_be_done(window):
            return False
        if all(self._meet(f"steps of {window.phase.value}", window.done)):
            return True
        self._next_look += max(1, self._next_look // 2)
        return False

    def _keep_result(self, window: MeasuredWindow) -> None:
        assert window.result is not None
        found = self._meet(window.phase.value, (window.result, window.waits))
        self.progress.results[window.phase] = window.result
        self.progress.job[window.phase] = together(*map(list, zip(*found, strict=True)))

    def _meet(self, name: str, value: T) -> list[T]:
        return self._ranks.meet(f"{self.progress.place}: {name}", value)

    def _begin(self, phase: Phase) -> None:
        found = self._meet(f"begin of {phase.value}", (self._prepare(phase), self._backlog(phase)))
        why = next((reason for reason, _ in found if reason), "")
        if why:
            self.close()  # what this rank has begun, if it is another that cannot
            self.progress.skipped[phase] = why
            if self.finished:
                self._measured(self)
            return
        window = MeasuredWindow(phase, self._seconds, max(backlog for _, backlog in found))
        self._next_look = _FEWEST_STEPS
        self._window = self.progress.windows.setdefault(phase, window)
        self._window.restart()

    def _backlog(self, phase: Phase) -> int:
        """Returns the steps that say more of a pause before them than of the phase."""
        workers, steps = self.loader.num_workers, 2
        if phase is not Phase.MEMORY and workers:
            steps = workers * (1 if phase is Phase.TODAY else self.loader.prefetch_factor or 2)
        length = steps_of(self.loader)
        return steps if length is None else min(steps, length // 2)

    def _prepare(self, phase: Phase) -> str:
        """Gets the source of a phase's batches ready; returns why there is none."""
        self._announce(f"{self.progress.place}: {phase.value}")
        if phase in (Phase.TODAY, Phase.MEMORY):
            return ""
        if not self.mini_batches:
            few = max(_PROBED_SAMPLES, _FEWEST_BATCHES * (self.loader.batch_size or 1))
            self.mini_batches = first_mini_batches(self.loader, few)
            self._find_parts()
        if phase is Phase.COLD and not self._parts:
            return self._why_no_files()
        files.warm(self._parts)
        before = None
        if phase is Phase.COLD:
            self._choose_dropped()
            if not self._dropped:
                return "the file cache holds all files"
            dropped = (part for index in self._dropped for part in self.parts[index])
            if not any(files.drop(part) for part in dropped):
                return "the file cache cannot be dropped: " + files.why_kept(self._parts)
            before = self._drop
        sampler = CyclicBatches(self.mini_batches, before) if self.mini_batches else None
        self._probe = like(self.loader, sampler)
        self._batches = forever(self._probe)
        return ""

    def _find_parts(self) -> None:
        indices = [index for mini_batch in self.mini_batches for index in mini_batch]
        self.parts = files.parts_of(self.loader.dataset, indices) if indices else {}
        self._parts = list(dict.fromkeys(part for each in self.parts.values() for part in each))

    def _choose_dropped(self) -> None:
        """Leaves in the file cache the share of the files that its limit has room for."""
        sizes = files.sizes_of(self.parts)
        samples = samples_of(self.loader) or len(sizes)
        share = self._file_cache.share_of(samples * sum(sizes.values()) / len(sizes))
        self._dropped = files.outside_cache(list(sizes), share)
        self.progress.cached_share = share

    def _why_no_files(self) -> str:
        if not self.mini_batches:
            return "an IterableDataset has no indices, by which its files could be found"
        if compile_dataset(self.loader.dataset).is_remote:
            return "samples are at URLs, and not in files"
        return "no sample opens a file from Python: they are in memory, or native code reads them"

    def _drop(self, mini_batch: MiniBatch) -> None:
        for index in self._dropped.intersection(mini_batch):
            for part in self.parts[index]:
                files.drop(part)

    def close(self) -> None:
        """Ends the workers of a probe."""
        self._window = self._batches = None
        if self._probe is not None:
            end(self._probe)
            self._probe = None

    # ---- batches -------------------------------------------------------------------------------

    def begin_epoch(self) -> None:
        """An iterator begins, and with it the workers of the phase that needs it."""
        if self._window is not None:
            self._window.restart()

    @property
    def needs_own(self) -> bool:
        """Whether batches come from the user's own iterator."""
        if self._window is not None and self._window.phase is Phase.TODAY:
            return True
        return self._batches is None and self._replay is None  # in another run of the script

    def keep(self, batch: Batch) -> None:
        """Keeps the first batch, to replay it."""
        if self._replay is None:
            self._replay = Replay(batch)

    def substitute(self) -> tuple[Batch, float]:
        """Returns a batch that is not the user's iterator's, and the seconds it was waited for."""
        if self._batches is not None:
            started = time.perf_counter()
            batch = next(self._batches)
            waited = time.perf_counter() - started
            self.keep(batch)
            return batch, waited
        assert self._replay is not None
        return self._replay.batch(), 0.0

    def step_done(
        self,
        batch: Batch,
        waited: float,
        elsewhere: float,
        cpu_seconds: float,
        workers: Iterable[int] = (),
    ) -> None:
        """Training has come back for another batch.

        Args:
            batch: the batch of that step.
            waited: seconds that it was waited for.
            elsewhere: seconds since then.
            cpu_seconds: processor time of the training process in these seconds.
            workers: process ids of torch's workers, where these make the batches.
        """
        self.progress.steps += 1
        window = self._window
        if window is None:
            return
        measured = window.measures
        samples = batch_length(batch) or self.loader.batch_size or 1
        window.add(samples, waited, elsewhere, cpu_seconds)
        if window.phase is Phase.TODAY and measured:
            self._processors = self._processors or LoaderProcessors(self.loader)
            self._processors.look(workers)
        if not measured or self._may_be_done(window):
            tail = _wait_for_device()
            window.add_tail(tail if measured else 0.0)

    def rest_is_short(self, steps: int) -> bool:
        """Whether so many steps on one batch take no more than a few seconds."""
        in_memory = self.progress.job.get(Phase.MEMORY)
        if in_memory is None:
            return False
        return steps * in_memory.seconds / in_memory.steps <= _REST_SECONDS


def _wait_for_device() -> float:
    """Lets a CUDA device finish the steps that a window ends with; returns the seconds."""
    started = time.perf_counter()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return time.perf_counter() - started
