"""Epochs of a loader: their numbers, where each stands, and what was counted on the way."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch.utils.data.dataloader import _DatasetKind

from fusionloader.resume.epoch_state import (
    EpochState,
    generator_state,
    set_generator_state,
)
from fusionloader.resume.keys import Occurrences, key_of
from fusionloader.resume.shares import batches_left, share_of, taken_on
from fusionloader.resume.stateful import SamplerRun, resting_state
from fusionloader.workers.messages import SampleSkipped

log = logging.getLogger("fusionloader.loader")


def detached(loader: Any) -> Any:
    """Returns a copy of the loader for its iterator to keep.

    It shares everything but the iterator: there is no cycle, so that dropping the last reference
    to an iterator ends its workers at once.
    """
    view = copy.copy(loader)
    view._iterator = None
    return view


def sampling_generator(loader: Any) -> torch.Generator | None:
    """Returns the generator that the loader's sampler draws from, ``None`` for the global one."""
    inner = getattr(loader.batch_sampler, "sampler", None)
    for sampler in (inner, loader.sampler, loader.batch_sampler):
        if hasattr(sampler, "generator"):
            found = getattr(sampler, "generator", None)
            return found if isinstance(found, torch.Generator) else None
    generator: torch.Generator | None = loader.generator
    return generator


def _check_workers(loader: Any, epoch_state: EpochState) -> None:
    """Refuses a state of other workers, where it matters which worker has seen what."""
    of_workers = epoch_state.delivered > 0 or any(epoch_state.worker_states())
    if not of_workers or loader._dataset_kind != _DatasetKind.Iterable:
        return
    if epoch_state.num_workers != loader.num_workers:
        raise ValueError(
            f"the state was saved with num_workers = {epoch_state.num_workers}, and this loader "
            f"has {loader.num_workers}: each worker went through an IterableDataset on its own, so "
            "it goes on with as many workers only"
        )


_MASK = (1 << 64) - 1
_KEPT_ERRORS = 100


@dataclass(slots=True)
class Counters:
    """What ``FusionLoader.stats()`` reports; seconds are wall time of the training process."""

    epochs: int = 0
    batches: int = 0
    samples: int = 0
    wait_seconds: float = 0.0
    skipped: int = 0
    substituted: int = 0
    errors: list[str] = field(default_factory=list)
    worker_restarts: int = 0
    worker_seconds: float = 0.0
    pillow_samples: int = 0
    shared_memory_bytes: int = 0
    part_seconds: list[float] = field(default_factory=list)
    gpu_worker: dict[str, Any] = field(default_factory=dict)
    borrowed_samples: int = 0

    def add_part_seconds(self, seconds: Sequence[float]) -> None:
        """Adds the time spent on each part of a plan."""
        pairs = zip_longest(self.part_seconds, seconds, fillvalue=0.0)
        self.part_seconds = [a + b for a, b in pairs]  # a changed plan may have more of them


class Epochs:
    """The epochs of one loader, across its iterators."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.current: EpochState | None = None
        self._next = 0
        self._loaded: EpochState | None = None
        self._resume: EpochState | None = None
        self._taken: tuple[EpochState | None, EpochState | None] = (None, None)
        self._numbered = False
        self._sets = 0
        self.workers: int | None = None  # that iterators are to have, if it has changed
        self._seen: tuple[Any, ...] = ()
        # Of the latest iterator that has workers, for as long as it lives.
        self.idle_window: Callable[[], Callable[[], AbstractContextManager[Any]] | None] = lambda: (
            None
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Epochs, ()  # a copied or pickled loader begins anew

    def set_epoch(self, epoch: int) -> None:
        """Numbers the next epoch, or the one under way that has delivered nothing yet."""
        self._next = int(epoch)
        self._numbered = True
        self._sets += 1

    def base_seed(self, drawn: int) -> int:
        """Returns what the next iterator's workers are seeded from; it has drawn ``drawn``."""
        coming = self._resume
        return drawn if coming is None or coming.base_seed is None else coming.base_seed

    def dataset_states(self) -> list[Any] | None:
        """Returns the states of a stateful dataset that the next iterator is to begin with."""
        loaded = self._loaded
        if loaded is None:
            return None
        states = loaded.worker_states()
        for state in states:
            if state is not None and loaded.finished:
                state["between"] = True
        return states

    def start(self, loader: Any, base_seed: int) -> EpochState:
        """Returns the state of a new epoch, or of the one that ``load_state_dict`` brought."""
        self._seen = self._signs(loader)
        before, loaded = self.current, self._loaded
        resumed, self._resume, self._loaded = self._resume, None, None
        self._taken = loaded, None if resumed is None else resumed.copy()
        if resumed is not None:
            self.current = resumed
        else:
            seed = base_seed if loader.seed is None else loader.seed
            state = generator_state(sampling_generator(loader))
            self.current = EpochState(self._next, seed & _MASK, state, base_seed)
            self.current.num_workers = loader.num_workers
            if loaded is not None:
                self.current.inherit(loaded)
            elif before is not None and loader.persistent_workers:
                self.current.workers = before.workers_between()
        if self.current.share is None or not self.current.share.before:
            self.current.share = share_of(loader)
        self._next = self.current.epoch + 1
        self._numbered = False
        return self.current

    def restart(self) -> None:
        """Takes the start of an epoch back that has delivered nothing: its number has changed."""
        self._loaded, self._resume = self._taken
        if self._resume is None and self.current is not None and not self._numbered:
            self._next = self.current.epoch

    def changed(self, loader: Any) -> bool:
        """Whether somebody set the epoch, here or on a sampler, since it was started."""
        return self._signs(loader) != self._seen

    def _signs(self, loader: Any) -> tuple[Any, ...]:
        samplers = (loader.sampler, loader.batch_sampler)
        inner = getattr(loader.batch_sampler, "sampler", None)
        return (self._sets, *(getattr(s, "epoch", None) for s in (*samplers, inner)))

    def indices(
        self, loader: Any, epoch_state: EpochState, fresh: Iterator[Any]
    ) -> Iterator[tuple[int, Any]]:
        """Yields every mini-batch of the epoch with its number, delivered before or not.

        ``fresh`` is a new iterator over the loader's sampler. A resumed epoch has one of its own,
        which draws from the generator as it stood when the epoch began.
        """
        if epoch_state.share is not None and epoch_state.share.before:
            yield from enumerate(batches_left(loader, epoch_state.share))
            return
        run = SamplerRun(loader._index_sampler, fresh)
        if run.stateful:
            yield from self._of_stateful(run, epoch_state)
            return
        generator = sampling_generator(loader)
        before = generator_state(generator)
        if not epoch_state.resumed:  # the user may have seeded it since
            epoch_state.generator = before
        if before == epoch_state.generator:
            yield from enumerate(run)
            return
        set_generator_state(generator, epoch_state.generator)
        batches = enumerate(run)
        first = next(batches, None)  # samplers draw their seed here
        if generator is None:
            set_generator_state(None, before)
        if first is not None:
            yield first
            yield from batches

    def _of_stateful(self, run: SamplerRun, epoch_state: EpochState) -> Iterator[tuple[int, Any]]:
        number, saved = epoch_state.delivered, epoch_state.sampler
        if saved is not None and number == 0:
            run.begin_after(saved)
        elif saved is not None:
            run.go_on(saved)
        epoch_state.drawn[number - 1] = run.state()
        for batch in run:
            epoch_state.drawn[number] = run.state()
            yield number, batch
            number += 1
        epoch_state.drawn[number] = run.state()

    def not_delivered(
        self, loader: Any, epoch_state: EpochState, fresh: Iterator[Any], samples: int
    ) -> Iterator[tuple[int, list[Any], list[int], list[int]]]:
        """Yields number, indices, keys and occurrences of each mini-batch still to be delivered.

        ``samples`` is the length of the dataset, 0 if unknown. See ``indices`` for the rest.
        """
        delivered, ahead = epoch_state.delivered, frozenset(epoch_state.ahead)
        occurrences = Occurrences(samples)
        for number, batch in self.indices(loader, epoch_state, fresh):
            indices = list(batch)
            keys = [key_of(index) for index in indices]
            counts = occurrences.count(keys)
            if number >= delivered and number not in ahead:
                yield number, indices, keys, counts

    def finish(self, epoch_state: EpochState) -> None:
        """Notes that an epoch came to its end, however often that is found."""
        if not epoch_state.finished:
            epoch_state.finished = True
            self.counters.epochs += 1

    # ---- saving --------------------------------------------------------------------------------

    def state(self, loader: Any) -> EpochState:
        """Returns what to save: the epoch under way, or else that the next one is to begin."""
        if self._loaded is not None:
            return self._loaded
        current = self.current
        if current is None or not (current.finished or current.drawn or current.delivered):
            resting = resting_state(loader._index_sampler)
        else:
            resting = current.sampler
        if current is not None and not current.finished:
            if resting is not None:
                current.drawn.setdefault(current.delivered - 1, resting)
            return current
        state = generator_state(sampling_generator(loader))
        coming = EpochState(self._next, 0, state, finished=True)
        coming.num_workers = loader.num_workers
        coming.share = share_of(loader)
        if resting is not None:
            coming.drawn[-1] = resting
        if current is not None:
            coming.live = current.live
            if loader.persistent_workers:
                coming.base_seed, coming.workers = current.base_seed, current.workers
        return coming

    def resume(self, loader: Any, epoch_state: EpochState) -> None:
        """Makes the next iterator go on from ``epoch_state``."""
        _check_workers(loader, epoch_state)
        if not epoch_state.finished:
            epoch_state.share = taken_on(epoch_state.share, share_of(loader))
        self.current = None
        self._loaded = epoch_state
        self._next = epoch_state.epoch
        self._sets += 1
        self._resume = (
            self._next_epoch(loader, epoch_state) if epoch_state.finished else epoch_state.copy()
        )

    def _next_epoch(self, loader: Any, epoch_state: EpochState) -> EpochState | None:
        """Returns the epoch after a finished one, ``None`` if the generators say what it is."""
        base_seed, state = epoch_state.base_seed, epoch_state.generator
        generator = sampling_generator(loader)
        if generator is not None:
            set_generator_state(generator, state)
        elif state != generator_state(None) and loader.generator is None and base_seed is None:
            # What an iterator would have drawn; the global generator itself is the user's.
            own = torch.Generator()
            set_generator_state(own, state)
            base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=own).item())
            state = generator_state(own)
        if base_seed is None:
            return None
        seed = base_seed if loader.seed is None else loader.seed
        coming = EpochState(epoch_state.epoch, seed & _MASK, state, base_seed, resumed=True)
        coming.num_workers = loader.num_workers
        coming.inherit(epoch_state)
        return coming

    # ---- counting ------------------------------------------------------------------------------

    def gather(self, manager: Any) -> None:
        """Adds up what the workers of a manager counted, when they are about to end."""
        if manager.closed:
            return
        counters = self.counters
        counters.worker_restarts += manager.restarts
        counters.borrowed_samples += manager.borrowed_samples
        counters.shared_memory_bytes = manager.memory.peak_bytes
        for worker in manager.queue.workers():
            counters.worker_seconds += worker.busy_seconds
            counters.pillow_samples += worker.pillow_samples
            counters.add_part_seconds(worker.part_seconds)

    def note_skipped(self, skipped: Sequence[SampleSkipped]) -> None:
        """Counts, keeps and logs samples that were left out or replaced."""
        for skip in skipped:
            if skip.replaced_by is None:
                self.counters.skipped += 1
            else:
                self.counters.substituted += 1
            if len(self.counters.errors) < _KEPT_ERRORS:
                self.counters.errors.append(skip.failure.text)
            lines = skip.failure.text.strip().splitlines()
            name = next((line for line in lines if line.startswith("Sample: ")), "a sample")
            action = "left out" if skip.replaced_by is None else f"replaced by {skip.replaced_by}"
            log.warning("%s was %s: %s", name, action, lines[-1])
