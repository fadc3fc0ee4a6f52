"""The number and the order of the turns of each source, by weights.

The weights of S sources add up to 1. The k-th turn of a source of weight w, from k = 0, is due at
time (k + 1/2) / w. Turns are taken in the order of these times, which is Webster's method of
apportionment, turn by turn. After t turns a source has had t * w, to within (1 + S * w) / 2: at
time x each source has had x * w turns to within 1/2, so t is x to within S / 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusionloader.data.samplers.batch_order import smallest_choice

Weights = NDArray[np.float64]
Counts = NDArray[np.int64]
Choices = NDArray[np.unsignedinteger[Any]]

_BLOCK = 1 << 20  # turns sorted at a time


def turns_until_first(weights: Weights, lengths: Counts) -> Counts:
    """Returns the turns of each source before one would exceed its length."""
    ends = (lengths + 0.5) / weights
    first = int(ends.argmin())
    turns = np.ceil(ends[first] * weights - 0.5).astype(np.int64)
    turns[first] = lengths[first]  # exact, whatever the rounding above
    return np.asarray(np.minimum(turns, lengths))


def turns_until_all(weights: Weights, lengths: Counts) -> Counts:
    """Returns the turns of each source until each has had at least its length."""
    ends = (lengths - 0.5) / weights
    last = int(ends.argmax())
    turns = np.floor(ends[last] * weights - 0.5).astype(np.int64) + 1
    turns[last] = lengths[last]
    return np.asarray(np.maximum(turns, lengths))


def turns_for_total(weights: Weights, total: int) -> Counts:
    """Returns the turns of each source among the first ``total``."""
    turns = np.floor(total * weights + 0.5).astype(np.int64)
    # Rounding misses the total by a few: add the turns due next, or remove those due last.
    while turns.sum() < total:
        turns[((turns + 0.5) / weights).argmin()] += 1
    while turns.sum() > total:
        latest = (turns - 0.5) / weights
        turns[len(turns) - 1 - latest[::-1].argmax()] -= 1
    return turns


def even_choices(weights: Weights, turns: Counts) -> Choices:
    """Returns the source of each turn, in the order in which they are due."""
    choices = np.empty(int(turns.sum()), smallest_choice(len(turns)))
    taken = np.zeros(len(turns), np.int64)
    moment = 0.0
    while (taken < turns).any():
        moment += _BLOCK
        until = np.minimum(turns, np.floor(moment * weights + 0.5).astype(np.int64))
        due = [
            (np.arange(first, stop) + 0.5) / weight
            for first, stop, weight in zip(taken, until, weights, strict=True)
        ]
        order = np.argsort(np.concatenate(due), kind="stable")
        there = np.repeat(np.arange(len(turns), dtype=choices.dtype), until - taken)
        done = int(taken.sum())
        choices[done : done + len(order)] = there[order]
        taken = until
    return choices


def random_choices(turns: Counts, generator: np.random.Generator) -> Choices:
    """Returns the source of each turn, in random order."""
    choices = np.repeat(np.arange(len(turns), dtype=smallest_choice(len(turns))), turns)
    generator.shuffle(choices)
    return choices
