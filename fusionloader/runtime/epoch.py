"""Epochs of a loader: their numbers, where each stands, and what was counted on the way."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from fusionloader.runtime.keys import Occurrences, key_of
from fusionloader.runtime.messages import SampleSkipped
from fusionloader.runtime.progress import (
    Progress,
    generator_state,
    set_generator_state,
)

log = logging.getLogger("fusionloader.loader")


def detached(loader: Any) -> Any:
    """Returns a copy of the loader for its iterator to keep.

    It shares everything but the iterator: there is no cycle, so that dropping the last reference
    to an iterator ends its workers at once.
    """
    view = copy.copy(loader)
    view._iterator = None
    return view


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
        self.current: Progress | None = None
        self._next = 0
        self._resume: Progress | None = None
        self._sets = 0
        self.workers: int | None = None  # that iterators are to have, if it has changed
        self._seen: tuple[Any, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return Epochs, ()  # a copied or pickled loader begins anew

    def set_epoch(self, epoch: int) -> None:
        """Numbers the next epoch, or the one under way that has delivered nothing yet."""
        self._next = int(epoch)
        self._sets += 1

    def start(self, loader: Any, base_seed: int) -> Progress:
        """Returns the progress of a new epoch, or of the one that ``load_state_dict`` brought."""
        self._seen = self._signs(loader)
        resumed, self._resume = self._resume, None
        if resumed is not None:
            self.current = resumed
        else:
            seed = base_seed if loader.seed is None else loader.seed
            state = generator_state(loader.generator)
            self.current = Progress(self._next, seed & _MASK, state)
        self._next = self.current.epoch + 1
        return self.current

    def changed(self, loader: Any) -> bool:
        """Whether somebody set the epoch, here or on a sampler, since it was started."""
        return self._signs(loader) != self._seen

    def _signs(self, loader: Any) -> tuple[Any, ...]:
        samplers = (loader.sampler, loader.batch_sampler)
        inner = getattr(loader.batch_sampler, "sampler", None)
        return (self._sets, *(getattr(s, "epoch", None) for s in (*samplers, inner)))

    def indices(
        self, loader: Any, progress: Progress, fresh: Iterator[Any]
    ) -> Iterator[tuple[int, Any]]:
        """Yields every mini-batch of the epoch with its number, delivered before or not.

        ``fresh`` is a new iterator over the loader's sampler. A resumed epoch has one of its own,
        which draws from the generator as it stood when the epoch began.
        """
        before = generator_state(loader.generator)
        if before == progress.generator:
            yield from enumerate(fresh)
            return
        set_generator_state(loader.generator, progress.generator)
        batches = enumerate(iter(loader._index_sampler))
        first = next(batches, None)  # samplers draw their seed here
        if loader.generator is None:
            set_generator_state(None, before)
        if first is not None:
            yield first
            yield from batches

    def not_delivered(
        self, loader: Any, progress: Progress, fresh: Iterator[Any], samples: int
    ) -> Iterator[tuple[int, list[Any], list[int], list[int]]]:
        """Yields number, indices, keys and occurrences of each mini-batch still to be delivered.

        ``samples`` is the length of the dataset, 0 if unknown. See ``indices`` for the rest.
        """
        delivered, ahead = progress.delivered, frozenset(progress.ahead)
        occurrences = Occurrences(samples)
        for number, batch in self.indices(loader, progress, fresh):
            indices = list(batch)
            keys = [key_of(index) for index in indices]
            counts = occurrences.count(keys)
            if number >= delivered and number not in ahead:
                yield number, indices, keys, counts

    def finish(self, progress: Progress) -> None:
        """Notes that an epoch came to its end, however often that is found."""
        if not progress.finished:
            progress.finished = True
            self.counters.epochs += 1

    # ---- saving --------------------------------------------------------------------------------

    def state(self, loader: Any) -> Progress:
        """Returns what to save: the epoch under way, or else that the next one is to begin."""
        if self._resume is not None:
            return self._resume
        if self.current is not None and not self.current.finished:
            return self.current
        return Progress(self._next, 0, generator_state(loader.generator), finished=True)

    def resume(self, loader: Any, progress: Progress) -> None:
        """Makes the next iterator go on from ``progress``."""
        if progress.finished:
            self._next = progress.epoch
            if loader.generator is not None:
                set_generator_state(loader.generator, progress.generator)
        else:
            self._resume = progress
            self._next = progress.epoch
        self._sets += 1

    # ---- counting ------------------------------------------------------------------------------

    def gather(self, manager: Any) -> None:
        """Adds up what the workers of a manager counted, when they are about to end."""
        if manager.closed:
            return
        counters = self.counters
        counters.worker_restarts += manager.restarts
        counters.borrowed_samples += manager.borrowed_samples
        counters.shared_memory_bytes = manager.payloads.peak_bytes
        for record in manager.queue.records():
            counters.worker_seconds += record[6]
            counters.pillow_samples += record[7]
            counters.add_part_seconds(record[8])

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
