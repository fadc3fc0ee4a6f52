"""Whether two samples of drawn operations have one distribution.

Each draw is a list of operations, each a name and numbers. Two samples, two sides, at a level that
chance alone fails about once in a million.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

Operation = tuple[Any, ...]
Draws = Sequence[Sequence[Operation]]


def assert_same_distribution(ours: Draws, theirs: Draws) -> None:
    """Frequencies within 5 standard deviations; arguments by Kolmogorov and Smirnov's test."""
    first, second = _grouped(ours), _grouped(theirs)
    assert first.keys() == second.keys()
    for key in first:
        n, m = len(first[key]), len(second[key])
        together = (n + m) / (len(ours) + len(theirs))
        spread = np.sqrt(together * (1 - together) * (1 / len(ours) + 1 / len(theirs)))
        assert abs(n / len(ours) - m / len(theirs)) <= 5 * spread, key
        for column in range(first[key].shape[1]):
            distance = _farthest(first[key][:, column], second[key][:, column])
            assert distance <= 2.7 * np.sqrt((n + m) / (n * m)), (key, column)


def flat(operation: Operation) -> Operation:
    """The name and the numbers of one of our operations."""
    numbers: list[float] = []
    for argument in operation[1:]:
        if isinstance(argument, tuple):
            numbers += argument
        elif isinstance(argument, (int, float)) and not isinstance(argument, bool):
            numbers.append(argument)
    kept = {"affine": 6, "rotate": 1, "perspective": 8}.get(operation[0], len(numbers))
    if operation[0] == "blur":
        numbers, kept = numbers[2:], 2
    return (operation[0], *numbers[:kept])


def _grouped(draws: Draws) -> dict[tuple[int, str], Any]:
    """Arguments by (place among the sample's operations, name)."""
    groups = defaultdict(list)
    for operations in draws:
        for place, (name, *numbers) in enumerate(operations):
            groups[place, name].append(numbers)
    return {key: np.array(rows, dtype=float) for key, rows in groups.items()}


def _farthest(first: Any, second: Any) -> Any:
    """The largest difference of the distribution functions of two samples."""
    # float32 and float64 of the same magnitude have to count as one value.
    first, second = np.sort(first.round(4)), np.sort(second.round(4))
    values = np.concatenate([first, second])
    below = [np.searchsorted(sample, values, "right") / len(sample) for sample in (first, second)]
    return np.abs(below[0] - below[1]).max()
