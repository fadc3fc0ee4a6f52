"""Sources of samples in Python workers, and the seeding of their random draws."""

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

# A user's map-style dataset of any class, and a sample of it.
Dataset: TypeAlias = Any
Sample: TypeAlias = Any

_SEEDED_AT_FIRST = 32  # number of samples before which all generators are seeded
_BEGUN = 624  # position of a Mersenne Twister that was just seeded

# random.seed() without checks of the argument's type, which take as long as the seeding.
_python_generator: Any = random._inst
_seed_python = super(random.Random, _python_generator).seed
_seed_torch = torch.default_generator.manual_seed


class SampleKey(NamedTuple):
    """The index of a sample, and all that its random draws depend on.

    Samples of one ``group`` share the draws of their augmentations; group 0 is none.
    """

    index: Any
    seed: int
    epoch: int
    key: int
    occurrence: int
    group: int = 0

    def replaced(self, index: int) -> SampleKey:
        """Returns the key of another sample with the same draws."""
        return self._replace(index=index)


class Seeding(NamedTuple):
    """Which of the global generators are seeded for each sample."""

    python: bool = True
    torch: bool = True
    numpy: bool = True


class Source(Protocol):
    """Makes samples by key; seeds the global generators for each according to ``seeding``."""

    dataset: Dataset
    seeding: Seeding

    def load(self, key: SampleKey) -> Sample:
        """Returns the sample of a key."""

    def renewed(self) -> Source:
        """Returns a source for the dataset's current state, which user code may have changed."""

    def take_spent(self) -> Spent:
        """Returns the counted costs of samples since the last call."""

    def name(self, key: SampleKey) -> str:
        """Returns the sample's name for messages: its index, and its path if known."""

    def count(self) -> int:
        """Returns the number of samples in the dataset, 0 if unknown."""


def find_length(dataset: Dataset) -> int:
    """Returns ``len(dataset)``, 0 if it has none."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return 0


def make_group(number: int, row: int, size: int) -> int:
    """Returns the group of a row of mini-batch ``number``, as csrc/queue/layout.hpp does."""
    return (number << 24 | row // size) << 1 | 1


def seed_generators(key: SampleKey, seeding: Seeding) -> None:
    """Seeds the global generators of Python, torch and numpy for one sample.

    Thus a random transform gives the same result in any worker and any order.
    """
    # 63 bits: user code may store torch.initial_seed() in a tensor of int64.
    state = _native.mix_key(key.seed, key.epoch, key.key, key.occurrence) >> 1
    if seeding.python:
        _seed_python(state)
        _python_generator.gauss_next = None
    if seeding.torch:
        _seed_torch(state)
    if seeding.numpy:
        np.random.seed(state & 0xFFFFFFFF)


class SeededRuns:
    """Seeds the global generators for each sample, except those that no sample draws from.

    Seeding Python's and numpy's generators can take longer than the sample. A generator that has
    not moved during the first samples is no longer seeded. If a later sample moves it after all,
    that sample is made once more with a seeded generator, and all later samples seed it. So results
    are the same as if it had always been seeded.
    """

    def __init__(self) -> None:
        self._places: tuple[ctypes.c_uint64, ctypes.c_uint64] | None = None
        self._draws = (False, False)  # whether samples draw from Python's, from numpy's
        self._left = _SEEDED_AT_FIRST
        self._rest: Seeding | None = None  # generators to seed after the first samples
        self._undrawn: Seeding | None = (
            None  # generators to seed, if no sample draws from these two
        )
        self._left_at: tuple[int, int] | None = None  # positions that no fresh seed has

    def __reduce__(self) -> tuple[type[SeededRuns], tuple[()]]:
        return SeededRuns, ()  # another process observes its own samples

    def run(self, key: SampleKey, seeding: Seeding, make: Callable[[], Sample]) -> Sample:
        """Returns ``make()``, with the global generators seeded by ``key``."""
        if seeding is self._undrawn:  # as below, with less work for cheap samples
            python, numpy = self._places  # type: ignore[misc]
            before = python.value, numpy.value
            if before == self._left_at:
                if seeding[1]:
                    _seed_torch(_native.mix_key(key[1], key[2], key[3], key[4]) >> 1)
                try:
                    sample = make()
                except Exception:
                    if not self._was_unseeded(before, seeding):
                        raise
                else:
                    if before == (python.value, numpy.value):
                        return sample
                    self._was_unseeded(before, seeding)
        return self._watched(key, seeding, make)

    def _watched(self, key: SampleKey, seeding: Seeding, make: Callable[[], Sample]) -> Sample:
        places = self._places or self._find_places()
        if places is None or all(self._draws) or not (seeding.python or seeding.numpy):
            seed_generators(key, seeding)
            return make()
        python, numpy = places
        seed_generators(key, self._rest or seeding)
        before = python.value, numpy.value
        if before != self._left_at and self._rest is not None:
            if self._leave_start(*before):
                before = python.value, numpy.value
            self._left_at = before
        try:
            sample = make()
        except Exception:
            if not self._was_unseeded(before, seeding):
                raise
        else:
            if not self._was_unseeded(before, seeding):
                return sample
        return self._watched(key, seeding, make)

    def _find_places(self) -> tuple[ctypes.c_uint64, ctypes.c_uint64] | None:
        if not all(self._draws):
            self._places = _locate_generators()
            if self._places is None:
                self._draws = (True, True)  # unknown: always seeded
        return self._places

    def _leave_start(self, python: int, numpy: int) -> bool:
        """Moves generators that were just seeded; returns whether it moved any.

        A sample that seeds a generator itself sets it to that same position, and would not be seen.
        """
        begun = python & 0xFFFFFFFF == _BEGUN, numpy >> 32 == _BEGUN
        if begun[0] and not self._draws[0]:
            random.random()
        if begun[1] and not self._draws[1]:
            np.random.random_sample()
        return any(begun)

    def _was_unseeded(self, before: tuple[int, int], seeding: Seeding) -> bool:
        """Records which generators a sample moved; returns whether one of them was not seeded."""
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
            self._undrawn = None if python or numpy else seeding
        return skipped


def _locate_generators() -> tuple[ctypes.c_uint64, ctypes.c_uint64] | None:
    """Returns the memory of the generators' positions, each with a word of the state beside it.

    ``None`` for a version of Python or numpy with another layout, and for another generator.
    """
    # Layouts of _randommodule.c and of numpy's mt19937.h, checked by the comparison below.
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
    """Context that restores the states of the global generators on exit."""
    states = generator_states()
    try:
        yield
    finally:
        set_generator_states(states)


def generator_states() -> tuple[Any, ...]:
    """Returns the states of the global generators of Python, torch and numpy."""
    return random.getstate(), torch.get_rng_state().numpy(), np.random.get_state()


def set_generator_states(states: tuple[Any, ...]) -> None:
    """Restores states of ``generator_states``."""
    random.setstate(states[0])
    torch.set_rng_state(torch.from_numpy(states[1]))
    np.random.set_state(states[2])


class PickledGenerators:
    """The states of the global generators, pickled again only if one of them has changed."""

    def __init__(self) -> None:
        self._places = _locate_generators()
        self._seen: tuple[Any, ...] = ()
        self._pickled = b""

    def now(self) -> bytes:
        places = () if self._places is None else tuple(place.value for place in self._places)
        seen = *places, torch.get_rng_state().numpy().tobytes()
        if not places or seen != self._seen:
            self._seen, self._pickled = seen, pickle.dumps(generator_states())
        return self._pickled


class DatasetSource:
    """Source of a user's map-style dataset, indexed as torch's ``DataLoader`` does it."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.seeding = Seeding()
        self._runs = SeededRuns()

    def load(self, key: SampleKey) -> Sample:
        return self._runs.run(key, self.seeding, partial(getitem, self.dataset, key.index))

    def renewed(self) -> Source:
        return self

    def take_spent(self) -> Spent:
        return Spent()  # user code has no parts

    def name(self, key: SampleKey) -> str:
        return f"index {key.index!r}"

    def count(self) -> int:
        return find_length(self.dataset)
