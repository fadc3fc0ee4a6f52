"""Detects changes of a dataset and its transforms."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset

_DEPTH = 5  # levels: dataset, Compose, its list, a transform, a value of it
_DEEPEST = 16  # levels where a plan may depend on each value
_LONGEST = 64  # lists of transforms are shorter, and lists of samples longer
_MOST = 2000  # objects
_PLAIN = frozenset((int, float, bool, str, bytes, complex, type(None)))
_OPAQUE = (type, ModuleType, torch.Tensor, np.ndarray)


class Fingerprint:
    """The objects in the attributes of ``roots``, some levels deep, for comparison one by one.

    It includes attributes and the elements of short lists. It excludes the elements of long lists,
    arrays and tensors, whose replacement is not detected. Numbers among the attributes of the roots
    are left out because they may be counters, such as an epoch. With ``whole`` they are included,
    and so are more levels.
    """

    def __init__(self, *roots: Any, whole: bool = False) -> None:
        roots = tuple(each for root in roots for each in _with_joined(root))
        level = [part for root in roots for part in _parts(root)]
        if not whole:
            level = [part for part in level if type(part) not in (int, float)]
        found, seen = list(level), set[int]()
        for _ in range((_DEEPEST if whole else _DEPTH) - 1):
            if len(found) > _MOST:
                break
            # Each object once, since they may refer to each other.
            new = {id(part): part for part in level if type(part) not in _PLAIN}
            level = [part for at, value in new.items() if at not in seen for part in _parts(value)]
            seen.update(new)
            found += level
        # References, so that no other object gets the same address; weak ones to what may be large.
        self._found = [weakref.ref(part) if _is_array(part) else part for part in found]

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
    """Returns what is in an object, without running code of its class, which may load something."""
    kind = type(value)
    for plain in (list, tuple):
        if issubclass(kind, plain):
            return plain.__iter__(value) if plain.__len__(value) <= _LONGEST else ()
    if issubclass(kind, dict):
        return dict.values(value) if dict.__len__(value) <= _LONGEST else ()
    return () if issubclass(kind, _OPAQUE) else attributes(value).values()


def _is_array(value: Any) -> bool:
    return issubclass(type(value), (torch.Tensor, np.ndarray))


def attributes(value: Any) -> dict[str, Any]:
    """Returns an object's own attributes, without running code of its class.

    Those of C types are not known, because a proxy of C may load what it stands for.
    """
    pythons = vars(Fingerprint)["__dict__"]  # as Python makes it; those of C types lack its text
    for kind in type(value).__mro__:
        found = vars(kind).get("__dict__")
        if found is not None:
            is_plain = type(found) is type(pythons) and found.__doc__ == pythons.__doc__
            return dict(found.__get__(value)) if is_plain else {}
    return {}


def _same(first: Any, second: Any) -> bool:
    if first is second:
        return True
    return type(first) is type(second) and type(first) in _PLAIN and bool(first == second)
