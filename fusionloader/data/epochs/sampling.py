"""The mini-batches of an epoch, in the sampler's order, also of a resumed epoch."""

from __future__ import annotations

import hashlib
import itertools
import pickle
from collections.abc import Iterator, Sequence
from operator import index as as_integer
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from fusionloader.data.epochs.epoch_state import EpochState, generator_state, set_generator_state
from fusionloader.data.epochs.rank_shares import batches_left
from fusionloader.data.epochs.stateful import SamplerRun, batches_before
from fusionloader.options.aliases import Index
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.transforms.executors.fetchers import find_list_maker

_MASK = (1 << 64) - 1
_MOST_SAMPLERS = 8  # that are looked at, of those that hold each other
Drawn = TypeVar("Drawn")


def make_key(index: Index) -> int:
    """Returns the 64-bit key of an index: an integer itself, or a hash of any other index."""
    try:
        return as_integer(index) & _MASK
    except TypeError:
        digest = hashlib.blake2b(pickle.dumps(index, protocol=4), digest_size=8).digest()
        return int.from_bytes(digest, "little")


def make_keys(indices: Sequence[Index]) -> list[int]:
    try:
        return [number & _MASK for number in map(as_integer, indices)]
    except TypeError:
        return [make_key(index) for index in indices]


class Occurrences:
    """Counts how often each key has occurred in an epoch.

    When a sampler repeats an index (with replacement, repeated augmentation), each occurrence has
    other random draws. Keys below ``size`` take one byte each, whether they occur or not.
    """

    def __init__(self, size: int) -> None:
        self._small = bytearray(size)
        self._other: dict[int, int] = {}

    def count(self, keys: Sequence[int]) -> list[int]:
        """Returns for each key, in order, how often it occurred before in the epoch."""
        small, size = self._small, len(self._small)
        counts = []
        for key in keys:
            before = small[key] if key < size else 255
            if before < 255:  # 255 means that the count is in _other
                small[key] = before + 1
            else:
                before = self._other.get(key, 255 if key < size else 0)
                self._other[key] = before + 1
            counts.append(before)
        return counts


class GivenBatch(list[Index]):
    """Indices of a mini-batch whose sampler gives no list: ``__getitems__`` gets ``given`` itself.

    What has no length, such as a slice, counts as one index.
    """

    def __init__(self, given: Any) -> None:
        super().__init__(given if hasattr(given, "__len__") else [given])
        self.given = given


class SampledBatch(NamedTuple):
    """A mini-batch of an epoch, with the keys of its samples' random draws.

    Attributes:
        number: number in the epoch, from 0.
        indices: dataset indices.
        keys: 64-bit key of each index; empty if samples draw nothing.
        occurrences: for each index, how often it occurred before in the epoch.
    """

    number: int
    indices: list[Index]
    keys: list[int]
    occurrences: list[int]


def sampling_generator(options: LoaderOptions) -> torch.Generator | None:
    """Returns the generator of the loader's sampler; ``None`` for torch's global generator."""
    for sampler in samplers_of(options):
        if hasattr(sampler, "generator"):
            found = getattr(sampler, "generator", None)
            return found if isinstance(found, torch.Generator) else None
    return options.generator


def samplers_of(options: LoaderOptions) -> list[Any]:
    """Returns the loader's samplers, and those that they hold, as Accelerate's do."""
    found: dict[int, Any] = {}
    left = [options.inner_sampler, options.sampler, options.batch_sampler]
    while left and len(found) < _MOST_SAMPLERS:
        sampler = left.pop(0)
        if sampler is not None and id(sampler) not in found:
            found[id(sampler)] = sampler
            left += [getattr(sampler, name, None) for name in ("sampler", "batch_sampler")]
    return list(found.values())


def numbered_batches(
    options: LoaderOptions, state: EpochState, fresh: Iterator[Index]
) -> Iterator[tuple[int, list[Index]]]:
    """Yields each mini-batch of the epoch with its number, including delivered ones.

    ``fresh`` is a new iterator over the loader's sampler. For a resumed epoch the generator is set
    back to its state at the start of the epoch, so that the sampler draws the same order again.
    """
    if state.share is not None and state.share.before:
        yield from enumerate(batches_left(options, state.share))
        return
    generator = sampling_generator(options)
    before = generator_state(generator)
    if not state.resumed:  # the user may have seeded the generator since the state was made
        state.generator = before
    is_other = before != state.generator
    if is_other:
        set_generator_state(generator, state.generator)
        fresh = iter(options.index_sampler)  # samplers draw their seed here, or at the first batch
    run = SamplerRun(options.index_sampler, fresh)
    if run.stateful:
        if is_other:
            set_generator_state(generator, before)
        yield from _resume_stateful(run, state)
        return
    batches = enumerate(run)
    first = next(batches, None)
    if is_other and generator is None:
        set_generator_state(None, before)
    if first is not None:
        yield first
        yield from batches


def _resume_stateful(run: SamplerRun, state: EpochState) -> Iterator[tuple[int, list[Index]]]:
    number, saved = state.delivered, state.sampler
    if saved is not None and number == 0:
        run.begin_after(saved, state.epoch_set)
        if state.epoch_set is not None:
            state.drawn[-1] = run.state()
    elif saved is not None:
        run.go_on(saved)
    else:  # a sampler may apply a loaded state only when it goes on, so it says the old one now
        state.drawn[number - 1] = run.state()
    for batch in run:
        state.drawn[number] = run.state()
        yield number, batch
        number += 1
    state.drawn[number] = run.state()


def undelivered_batches(
    options: LoaderOptions,
    state: EpochState,
    fresh: Iterator[Index],
    samples: int,
    keyed: bool = True,
) -> Iterator[SampledBatch]:
    """Yields each mini-batch that is not delivered yet.

    Args:
        options: options of the loader.
        state: the epoch.
        fresh: a new iterator over the loader's sampler.
        samples: length of the dataset; 0 if unknown.
        keyed: whether keys and occurrences are needed, which is so if samples draw at random.
    """
    delivered, ahead = state.delivered, frozenset(state.ahead)
    occurrences = Occurrences(samples if keyed else 0)
    if keyed and delivered > 0 and state.sampler is not None:
        for batch in batches_before(options.index_sampler, state.sampler):
            occurrences.count(make_keys(_listed(batch, options)))
    for number, batch in numbered_batches(options, state, fresh):
        indices = _listed(batch, options)
        keys = make_keys(indices) if keyed else []
        counts = occurrences.count(keys)
        if number >= delivered and number not in ahead:
            yield SampledBatch(number, indices, keys, counts)


def _listed(batch: Any, options: LoaderOptions) -> list[Index]:
    """Returns the indices of a mini-batch; ``batch_size=None`` has one, which may be a list.

    An iterator is listed also for ``__getitems__``, because it cannot be sent to workers.
    """
    if not options.auto_collation:
        return [batch]
    is_listed = type(batch) is list or isinstance(batch, Iterator)
    if is_listed or find_list_maker(options.dataset) is None:
        return list(batch)
    return GivenBatch(batch)


class Draws(Generic[Drawn]):
    """Iterates over an epoch's mini-batches and tells a failed sampler from an exhausted one.

    A generator, as most samplers are, raises StopIteration after any other exception.

    Attributes:
        left_by: class of the exception that the sampler was left by; ``None`` if it can draw more.
            Not the exception itself, whose traceback refers to the iterator.
    """

    def __init__(self, batches: Iterator[Drawn]) -> None:
        self._batches = batches
        self.left_by: type[BaseException] | None = None

    def now(self) -> Iterator[Drawn]:
        """Returns the mini-batches that are left; none after the sampler has failed."""
        return iter(()) if self.left_by is not None else self

    def __iter__(self) -> Iterator[Drawn]:
        return self

    def __next__(self) -> Drawn:
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except BaseException as error:
            self.left_by = error.__class__
            raise

    def take(self, drawn: list[Drawn]) -> None:
        """Appends the next mini-batch, if there is one, to a list.

        It is in the list before Python can raise KeyboardInterrupt, which it does behind a call.
        """
        if self.left_by is None:
            try:
                drawn.extend(itertools.islice(self._batches, 1))
            except BaseException as error:
                # A generator that an exception has not left has a frame, and can be used.
                if getattr(self._batches, "gi_frame", None) is None:
                    self.left_by = error.__class__
                raise

    def check(self) -> None:
        """Raises RuntimeError if the sampler failed before the end of the epoch."""
        if self.left_by is not None:
            raise RuntimeError(
                f"the sampler was left by {self.left_by.__name__}, and draws no more batches "
                "of this epoch: all that were drawn before are delivered. iter(loader) begins the "
                "next epoch"
            )


def set_sampler_epochs(options: LoaderOptions, epoch: int) -> None:
    """Calls ``set_epoch`` once on each sampler of a loader that has it."""
    for sampler in samplers_of(options):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
