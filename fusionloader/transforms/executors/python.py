"""Samples of Python workers: where they come from, and how their random draws are seeded."""

from __future__ import annotations

import contextlib
import ctypes
import pickle
import random
from collections.abc import Callable, Iterator
from functools import partial
from operator import getitem
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch

from fusionloader import _native
from fusionloader.transforms.plan.parts import Spent

# The user's map-style dataset, of any class, and its samples.
Dataset: TypeAlias = Any
Sample: TypeAlias = Any

_SEEDED_AT_FIRST = 32  # samples
_BEGUN = 624  # position of a generator that was just seeded

# random.seed() without its checks of the argument's type, which cost as much as the seeding.
_python_generator: Any = random._inst
_seed_python = super(random.Random, _python_generator).seed


class SampleKey(NamedTuple):
    """What a sample's randomness depends on, and the dataset index that it is of.

    Samples of one ``group``, where that is not 0, share the draws of their augmentations.
    """

    index: Any
    seed: int
    epoch: int
    key: int
    occurrence: int
    group: int = 0

    def replaced(self, index: int) -> SampleKey:
        """Returns the key for another sample in this one's place."""
        return self._replace(index=index)


class Seeding(NamedTuple):
    """Which of the global generators are seeded for every sample."""

    python: bool = True
    torch: bool = True
    numpy: bool = True


class Source(Protocol):
    """Makes samples from keys; seeds the global generators for each as ``seeding`` says."""

    dataset: Dataset
    seeding: Seeding

    def load(self, key: SampleKey) -> Sample:
        """Returns one sample."""

    def renewed(self) -> Source:
        """Returns the source of the dataset as it is now, after user code may have changed it."""

    def take_spent(self) -> Spent:
        """Returns what samples have cost since the last call, as far as it was counted."""

    def name(self, key: SampleKey) -> str:
        """Returns the sample's name for messages: index, and path where known."""

    def count(self) -> int:
        """Returns the number of samples of the dataset, 0 where it does not know."""


def length_of(dataset: Dataset) -> int:
    """Returns ``len(dataset)``, 0 where there is none."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return 0


def group_of(number: int, row: int, size: int) -> int:
    """Returns the group of a row of mini-batch ``number``, as csrc/queue/layout.hpp does."""
    return (number << 24 | row // size) << 1 | 1


def seed_generators(key: SampleKey, seeding: Seeding) -> None:
    """Seeds Python's, torch's and numpy's global generators for one sample, as ``seeding`` says.

    So a random transform gives the same result whichever worker runs it and in whichever order.
    """
    # 63 bits: a sample may well be torch.initial_seed(), and a tensor of int64 has to hold it.
    state = _native.mix_key(key.seed, key.epoch, key.key, key.occurrence) >> 1
    if seeding.python:
        _seed_python(state)
        _python_generator.gauss_next = None
    if seeding.torch:
        torch.default_generator.manual_seed(state)
    if seeding.numpy:
        np.random.seed(state & 0xFFFFFFFF)


class SeededRuns:
    """Seeds the global generators for each sample, but for those that no sample draws from.

    To seed Python's and numpy's takes as long as many a sample. A generator that has not moved
    during the first samples is not seeded any more. If a later sample moves it all the same, it is
    seeded from then on, and that sample is made once more: its draws are as if that had always been
    so.
    """

    def __init__(self) -> None:
        self._places: tuple[ctypes.c_uint64, ctypes.c_uint64] | None = None
        self._draws = (False, False)  # from Python's generator, from numpy's
        self._left = _SEEDED_AT_FIRST
        self._rest: Seeding | None = None  # what is seeded behind the first samples

    def __reduce__(self) -> tuple[type[SeededRuns], tuple[()]]:
        return SeededRuns, ()  # another process learns for itself

    def run(self, key: SampleKey, seeding: Seeding, make: Callable[[], Sample]) -> Sample:
        """Returns what ``make`` returns, which draws by ``key``."""
        places = self._places or self._find_places()
        if places is None or all(self._draws) or not (seeding.python or seeding.numpy):
            seed_generators(key, seeding)
            return make()
        python, numpy = places
        seed_generators(key, self._rest or seeding)
        before = python.value, numpy.value
        if self._rest is not None and self._leave_start(*before):
            before = python.value, numpy.value
        try:
            sample = make()
        except Exception:
            if not self._was_unseeded(before, seeding):
                raise
        else:
            if (python.value, numpy.value) == before and self._left <= 0:
                return sample
            if not self._was_unseeded(before, seeding):
                return sample
        return self.run(key, seeding, make)

    def _find_places(self) -> tuple[ctypes.c_uint64, ctypes.c_uint64] | None:
        if not all(self._draws):
            self._places = _places_of_generators()
            if self._places is None:
                self._draws = (True, True)  # as far as can be told
        return self._places

    def _leave_start(self, python: int, numpy: int) -> bool:
        """Moves what was just seeded, so that it is seen when a sample seeds it."""
        begun = python & 0xFFFFFFFF == _BEGUN, numpy >> 32 == _BEGUN
        if begun[0] and not self._draws[0]:
            random.random()
        if begun[1] and not self._draws[1]:
            np.random.random_sample()
        return any(begun)

    def _was_unseeded(self, before: tuple[int, int], seeding: Seeding) -> bool:
        """Notes what a sample has drawn from; whether that was not seeded."""
        assert self._places is not None
        known, places = self._draws, self._places
        self._draws = python, numpy = (
            known[0] or places[0].value != before[0],
            known[1] or places[1].value != before[1],
        )
        skipped = self._rest is not None and self._draws != known
        self._left -= 1
        if self._left <= 0:
            self._rest = Seeding(seeding.python and python, seeding.torch, seeding.numpy and numpy)
        return skipped


def _places_of_generators() -> tuple[ctypes.c_uint64, ctypes.c_uint64] | None:
    """Returns where the generators' positions lie, each with a word of the state beside it.

    ``None`` for a Python or a numpy that keeps them elsewhere, and for another generator.
    """
    generator: Any = np.random.mtrand._rand
    if type(generator._bit_generator) is not np.random.MT19937:
        return None
    python = ctypes.c_uint64.from_address(id(_python_generator) + object.__basicsize__)
    place = generator._bit_generator.ctypes.state_address + 623 * 4
    numpy = ctypes.c_uint64.from_address(place)
    words, state = random.getstate()[1], np.random.get_state(legacy=False)["state"]
    expected = words[-1] | words[0] << 32, int(state["key"][-1]) | int(state["pos"]) << 32
    return (python, numpy) if (python.value, numpy.value) == expected else None


@contextlib.contextmanager
def preserved_generators() -> Iterator[None]:
    """Gives Python's, torch's and numpy's global generators their states back afterwards."""
    states = generator_states()
    try:
        yield
    finally:
        set_generator_states(states)


def generator_states() -> tuple[Any, ...]:
    """Returns the states of Python's, torch's and numpy's global generators."""
    return random.getstate(), torch.get_rng_state().numpy(), np.random.get_state()


def set_generator_states(states: tuple[Any, ...]) -> None:
    """Undoes ``generator_states``."""
    random.setstate(states[0])
    torch.set_rng_state(torch.from_numpy(states[1]))
    np.random.set_state(states[2])


class PickledGenerators:
    """The states of the global generators, pickled anew only where one has moved."""

    def __init__(self) -> None:
        self._places = _places_of_generators()
        self._seen: tuple[Any, ...] = ()
        self._pickled = b""

    def now(self) -> bytes:
        """Returns ``generator_states()``, pickled."""
        places = () if self._places is None else tuple(place.value for place in self._places)
        seen = *places, torch.get_rng_state().numpy().tobytes()
        if not places or seen != self._seen:
            self._seen, self._pickled = seen, pickle.dumps(generator_states())
        return self._pickled


class DatasetSource:
    """The user's map-style dataset, called as torch's ``DataLoader`` calls it."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.seeding = Seeding()
        self._runs = SeededRuns()

    def load(self, key: SampleKey) -> Sample:
        """Returns ``dataset[index]``."""
        return self._runs.run(key, self.seeding, partial(getitem, self.dataset, key.index))

    def renewed(self) -> Source:
        """Returns this source, which asks the dataset itself."""
        return self

    def take_spent(self) -> Spent:
        """Returns nothing: user code has no parts."""
        return Spent()

    def name(self, key: SampleKey) -> str:
        """Returns ``index 5``."""
        return f"index {key.index!r}"

    def count(self) -> int:
        """Returns ``len(dataset)``, 0 where there is none."""
        return length_of(self.dataset)
