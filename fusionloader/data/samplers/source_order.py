"""The order of the samples of each source in an epoch, and the mix of all sources."""

from __future__ import annotations

import numpy as np

from fusionloader.data.samplers.batch_order import Indices, smallest_unsigned
from fusionloader.data.samplers.proportions import Choices

_BLOCK = 1 << 20
_SHORT = 1 << 12  # sources of up to this length: many passes are shuffled at once
_SPARSE = 50  # a source this many times longer than the draws is not shuffled as a whole


def in_order(length: int, count: int) -> Indices:
    """Returns ``count`` ascending samples of a source, which starts again at its end."""
    return np.resize(np.arange(length, dtype=smallest_unsigned(length)), count)


def with_replacement(length: int, count: int, generator: np.random.Generator) -> Indices:
    kind = smallest_unsigned(length)
    return generator.integers(0, length, count, dtype=kind.type)


def without_replacement(length: int, count: int, generator: np.random.Generator) -> Indices:
    """Returns ``count`` draws from a source: one shuffled pass after the other."""
    kind = smallest_unsigned(length)
    drawn = np.empty(count, kind)
    place = 0
    if length <= _SHORT:
        together = max(_BLOCK // length, 1)
        while count - place >= length:
            passes = min(together, (count - place) // length)
            found = generator.permuted(np.tile(np.arange(length, dtype=kind), (passes, 1)), axis=1)
            drawn[place : place + passes * length] = found.reshape(-1)
            place += passes * length
    while place < count:
        there = drawn[place : place + length]
        if len(there) * _SPARSE < length:
            there[:] = generator.choice(length, len(there), replace=False)
        else:
            found = np.arange(length, dtype=kind)
            generator.shuffle(found)
            there[:] = found[: len(there)]
        place += len(there)
    return drawn


def put_together(
    choices: Choices, samples: list[Indices], offsets: list[int], size: int
) -> Indices:
    """Returns the samples of all turns, as indices into the concatenated sources.

    Args:
        choices: source of each turn.
        samples: samples of each source, ``size`` for each of its turns.
        offsets: start of each source, followed by the number of all samples.
        size: samples in a turn.
    """
    together = np.empty((len(choices), size), smallest_unsigned(offsets[-1]))
    taken = np.zeros(len(samples), np.int64)
    step = max(_BLOCK // size, 1)
    for start in range(0, len(choices), step):
        there = choices[start : start + step]
        until = taken + np.bincount(there, minlength=len(samples))
        block = together[start : start + step]
        # A stable argsort lists the turns of source 0, then of source 1, ..., each in order.
        block[np.argsort(there, kind="stable")] = np.concatenate(
            [
                each[first * size : stop * size].reshape(-1, size) + together.dtype.type(offset)
                for each, first, stop, offset in zip(samples, taken, until, offsets, strict=False)
            ]
        )
        taken = until
    return together.reshape(-1)
