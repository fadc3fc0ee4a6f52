"""Where the samples of python workers come from: a dataset, or a compiled plan with a tail."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch

from fusionloader import _native
from fusionloader.executors.spent import Spent

# The user's map-style dataset, of any class, and its samples.
Dataset: TypeAlias = Any
Sample: TypeAlias = Any

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


@contextlib.contextmanager
def preserved_generators() -> Iterator[None]:
    """Gives Python's, torch's and numpy's global generators their states back afterwards."""
    states = random.getstate(), torch.get_rng_state(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        np.random.set_state(states[2])


class DatasetSource:
    """The user's map-style dataset, called as torch's ``DataLoader`` calls it."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.seeding = Seeding()

    def load(self, key: SampleKey) -> Sample:
        """Returns ``dataset[index]``."""
        seed_generators(key, self.seeding)
        return self.dataset[key.index]

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
