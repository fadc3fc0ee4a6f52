"""Targets of shards: none, or those of several shards one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

NO_TARGET = -1
"""Target of samples whose source has none, as in torchvision's ``STL10``."""

Targets = npt.NDArray[np.int64] | list[Any]


def are_int64(values: Sequence[Any]) -> bool:
    """Whether all of some targets are integers, of 64 bits or fewer."""
    if not set(map(type, values)) <= {int}:
        return False
    return not values or (min(values) >= -(1 << 63) and max(values) < 1 << 63)


def no_targets(count: int) -> npt.NDArray[np.int64]:
    """Returns the targets of samples that have none."""
    return np.full(count, NO_TARGET, np.int64)


def joined(parts: Sequence[Targets]) -> Targets:
    """Returns the targets of shards as one array, or one list where some are no integers."""
    if any(isinstance(part, list) for part in parts):
        return [target for part in parts for target in part]
    return np.concatenate(parts) if parts else no_targets(0)
