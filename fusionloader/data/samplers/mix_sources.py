"""The sources of a mix: names, lengths and weights, from a sampler's arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import accumulate
from operator import index as as_integer
from typing import TypeVar

import numpy as np
from torch.utils.data import Sampler

from fusionloader.data.samplers.proportions import Counts, Weights

Source = int | Sized
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MixSources:
    """The sources of a mix.

    Attributes:
        names: names of the sources; "0", "1", ... for a sequence.
        lengths: number of samples of each source.
        weights: weight of each source as given, above 0.
        replacement: whether the samples of each source are drawn with replacement.
    """

    names: tuple[str, ...]
    lengths: tuple[int, ...]
    weights: tuple[float, ...]
    replacement: tuple[bool, ...]

    @classmethod
    def of(
        cls,
        sources: Mapping[str, Source] | Sequence[Source],
        weights: Mapping[str, float] | Sequence[float],
        replacement: bool | Mapping[str, bool] | Sequence[bool],
    ) -> MixSources:
        """Returns the sources that a sampler's arguments give.

        Raises:
            TypeError: a source is a sampler, or has no length.
            ValueError: there is no source, a source is empty, or weights do not fit the sources.
        """
        named = isinstance(sources, Mapping)
        names = [*sources] if isinstance(sources, Mapping) else [*map(str, range(len(sources)))]
        if not names:
            raise ValueError("a mix needs sources, and there are none")
        lengths = map(_length, names, _by_name("sources", sources, names, named))
        found = [float(each) for each in _by_name("weights", weights, names, named)]
        for name, weight in zip(names, found, strict=True):
            if not (math.isfinite(weight) and weight > 0):
                raise ValueError(
                    f"the weight of source {name} is {weight}, and weights are finite and above 0: "
                    "leave a source out that is not to come up"
                )
        if isinstance(replacement, bool):
            replaced = [replacement] * len(names)
        else:
            replaced = [bool(each) for each in _by_name("replacement", replacement, names, named)]
        return cls(tuple(names), tuple(lengths), tuple(found), tuple(replaced))

    @property
    def shares(self) -> Weights:
        """The weights, scaled to a sum of 1."""
        weights = np.array(self.weights, np.float64)
        return np.asarray(weights / weights.sum())

    @property
    def counts(self) -> Counts:
        """The lengths, as an array."""
        return np.array(self.lengths, np.int64)

    @property
    def offsets(self) -> list[int]:
        """Start of each source in their concatenation, followed by the number of all samples."""
        return [0, *accumulate(self.lengths)]


def _by_name(
    what: str, given: Mapping[str, T] | Sequence[T], names: list[str], named: bool
) -> list[T]:
    """Returns one value per source, in the order of ``names``."""
    if isinstance(given, Mapping) != named:
        raise ValueError(
            f"{what} should be {'a mapping' if named else 'a sequence'}, as the sources are, not a "
            f"{type(given).__name__}"
        )
    if isinstance(given, Mapping):
        if given.keys() != set(names):
            raise ValueError(f"{what} are for {sorted(given)}, and the sources are {sorted(names)}")
        return [given[name] for name in names]
    if len(given) != len(names):
        raise ValueError(f"{len(names)} sources have {len(given)} {what}: give one for each")
    return list(given)


def _length(name: str, source: Source) -> int:
    if isinstance(source, Sampler):
        raise TypeError(
            f"source {name} is a sampler ({type(source).__name__}), whose order is not a function "
            "of seed and epoch: give its dataset or the number of its samples"
        )
    try:
        length = len(source) if isinstance(source, Sized) else as_integer(source)
    except (TypeError, NotImplementedError):
        raise TypeError(
            f"source {name} should be a dataset with a length, or a length, not a "
            f"{type(source).__name__}"
        ) from None
    if length < 1:
        raise ValueError(f"source {name} has {length} samples: leave it out")
    return length
