"""Sources of samples in Python workers, and the seeding of their random draws."""

from __future__ import annotations

import ctypes
import functools
import pickle
import random
import struct
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch

from fusionloader import _native
from fusionloader.transforms.executors.global_generators import generator_states
from fusionloader.transforms.plan.parts import Spent

# A user's map-style dataset of any class, and a sample of it.
Dataset: TypeAlias = Any
Sample: TypeAlias = Any


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
    except Exception:  # any: it is code of the user, and a sampler may need no length
        return 0


def make_group(number: int, row: int, size: int) -> int:
    """Returns the group of a row of mini-batch ``number``, as csrc/queue/layout.hpp does."""
    return (number << 24 | row // size) << 1 | 1


def seed_generators(key: SampleKey, seeding: Seeding) -> None:
    """Seeds the global generators of Python, torch and numpy for one sample.

    Thus a random transform gives the same result in any worker and any order.
    """
    seed = _native.mix_key(key.seed, key.epoch, key.key, key.occurrence)
    generators = native_generators()
    if generators is not None:
        generators.seed(seed, *seeding)
        return
    if seeding.python:
        random.seed(seed)
    if seeding.torch:
        torch.default_generator.manual_seed(seed)
    if seeding.numpy:
        np.random.seed(seed & 0xFFFFFFFF)


def native_generators() -> _native.Generators | None:
    """Returns the global generators, which are seeded in memory in a fraction of the time.

    ``None`` if that cannot be done: for a version of Python, torch or numpy with another layout,
    and if user code has set another bit generator.
    """
    generators, bit_generator = locate_generators()
    numpy: Any = np.random.mtrand._rand
    return generators if numpy._bit_generator is bit_generator else None


class _Trio(NamedTuple):
    """A generator of each library, of the types of the global ones."""

    python: Any
    torch: Any
    numpy: Any

    @staticmethod
    def seeded(seed: int) -> _Trio:
        of_torch = torch.Generator("cpu").manual_seed(seed)
        return _Trio(random.Random(seed), of_torch, np.random.RandomState(seed & 0xFFFFFFFF))

    def draw_normals(self) -> None:
        """Leaves numbers in the generators that were drawn in advance, and that seeding drops."""
        self.python.gauss(0, 1)
        torch.randn(1, generator=self.torch, dtype=torch.float64, device="cpu")
        self.numpy.standard_normal()

    def states(self) -> tuple[Any, ...]:
        _, words, *rest = self.numpy.get_state()
        return self.python.getstate(), self.torch.get_state().tolist(), words.tolist(), rest

    def places(self, torch_at: int, normal_at: int) -> tuple[int, int, int, int]:
        """Returns the addresses of the states; the two offsets are found in a trial."""
        return (
            id(self.python) + object.__basicsize__,
            self.torch._cdata + torch_at,
            self.numpy._bit_generator.ctypes.state_address,
            id(self.numpy) + normal_at,
        )


@functools.lru_cache(maxsize=1)
def locate_generators() -> tuple[_native.Generators | None, Any]:
    """Returns the global generators and numpy's bit generator, after a trial with others."""
    own: Any = _Trio(random._inst, torch.default_generator, np.random.mtrand._rand)
    bit_generator = own.numpy._bit_generator
    seed = 0x6A09E667F3BCC908  # its bits are found in memory
    trial, right = _Trio.seeded(seed), _Trio.seeded(seed)
    if [*map(type, own), type(bit_generator)] != [*map(type, trial), np.random.MT19937]:
        return None, bit_generator
    words = [
        struct.pack("624I", *state[:624]) for state in (trial.states()[0][1], trial.states()[2])
    ]
    torch_at = ctypes.string_at(trial.torch._cdata, 256).find(struct.pack("Q", seed))
    python, torchs, *_ = trial.places(torch_at, 0)
    # The offsets of the words in PythonTwister and TorchTwister, csrc/bindings/generators.hpp.
    found = [ctypes.string_at(python + 4, 2496), ctypes.string_at(torchs + 20, 2496)]
    trial.draw_normals()
    normal = struct.pack("d", trial.numpy.get_state()[4])
    normal_at = ctypes.string_at(id(trial.numpy), type(trial.numpy).__basicsize__).find(normal) - 8
    if torch_at < 0 or normal_at < 0 or found != words:
        return None, bit_generator
    _native.Generators(trial.python, trial, *trial.places(torch_at, normal_at)).seed(seed)
    if trial.states() != right.states():
        return None, bit_generator
    owners, places = (own, bit_generator), own.places(torch_at, normal_at)
    return _native.Generators(own.python, owners, *places), bit_generator


class PickledGenerators:
    """The states of the global generators, pickled again only if one of them has changed."""

    def __init__(self) -> None:
        self._seen: tuple[Any, ...] = ()
        self._pickled = b""

    def now(self) -> bytes:
        generators = native_generators()
        places = () if generators is None else generators.places
        seen = *places, torch.get_rng_state().numpy().tobytes()
        if not places or seen != self._seen:
            self._seen, self._pickled = seen, pickle.dumps(generator_states())
        return self._pickled


class DatasetSource:
    """Source of a user's map-style dataset, indexed as torch's ``DataLoader`` does it."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.seeding = Seeding()

    def load(self, key: SampleKey) -> Sample:
        seed_generators(key, self.seeding)
        return self.dataset[key.index]

    def renewed(self) -> Source:
        return self

    def take_spent(self) -> Spent:
        return Spent()  # user code has no parts

    def name(self, key: SampleKey) -> str:
        try:
            return f"index {key.index!r}"
        except Exception:  # in the __repr__ of a class of the user
            return f"index {object.__repr__(key.index)}"

    def count(self) -> int:
        return find_length(self.dataset)
