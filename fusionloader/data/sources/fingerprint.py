"""Detects changes of a dataset and its transforms."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset

_DEPTH = 5  # levels: dataset, Compose, its list, a transform, a value of it
_LONGEST = 64  # lists of transforms are shorter, and lists of samples longer
_MOST = 2000  # objects
_PLAIN = frozenset((int, float, bool, str, bytes, complex, type(None)))
_OPAQUE = (type, ModuleType, torch.Tensor, np.ndarray)


class Fingerprint:
    """The objects in the attributes of ``roots``, some levels deep, for comparison one by one.

    It includes attributes and the elements of short lists. It excludes the elements of long lists,
    arrays and tensors, whose replacement is not detected. Numbers among the attributes of the roots
    are left out because they may be counters, such as an epoch.
    """

    def __init__(self, *roots: Any) -> None:
        # Holds references, so that no other object can get the same address.
        roots = tuple(each for root in roots for each in _with_joined(root))
        self._found = [
            part for root in roots for part in _parts(root) if type(part) not in (int, float)
        ]
        level = self._found
        for _ in range(_DEPTH - 1):
            if len(self._found) > _MOST:
                break
            level = [part for value in level if type(value) not in _PLAIN for part in _parts(value)]
            self._found += level

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fingerprint) or len(self._found) != len(other._found):
            return False
        return all(map(_same, self._found, other._found))

    __hash__ = None  # type: ignore[assignment]


def _with_joined(root: Any) -> Iterable[Any]:
    """Yields a root, and the datasets that it joins, which would lie too deep otherwise."""
    yield root
    if type(root) is ConcatDataset:
        for part in root.datasets:
            yield from _with_joined(part)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, (list, tuple)):
        return value if len(value) <= _LONGEST else ()
    if isinstance(value, dict):
        return value.values() if len(value) <= _LONGEST else ()
    if isinstance(value, _OPAQUE):
        return ()
    return getattr(value, "__dict__", {}).values()


def _same(first: Any, second: Any) -> bool:
    if first is second:
        return True
    return type(first) is type(second) and type(first) in _PLAIN and bool(first == second)
