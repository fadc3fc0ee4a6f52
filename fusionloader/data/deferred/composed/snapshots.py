"""A transform's attributes as they were, to see whether the program has changed one since."""

from __future__ import annotations

import copy
import enum
from typing import Any

import numpy as np
import torch

from fusionloader.transforms.plan.arguments import Argument, Transform

_PLAIN = (type(None), bool, int, float, str, enum.Enum, torch.dtype, type)
_ARRAYS = (torch.Tensor, np.ndarray)


class Unknown(Exception):
    """A value that may change without being seen to."""


class Snapshot:
    """The attributes of a transform and of those in it.

    Raises:
        Unknown: one of them may change without being seen to.
    """

    def __init__(self, step: Transform) -> None:
        self._found: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._arrays: list[tuple[Any, Any]] = []
        self._add(step)

    def is_current(self) -> bool:
        """Whether all are as they were."""
        try:
            return all(now == then for now, then in self._found) and all(
                array.tolist() == values for array, values in self._arrays
            )
        except (RuntimeError, ValueError):  # arrays that have no truth value: others than before
            return False

    def _add(self, step: Transform) -> None:
        attributes = getattr(step, "__dict__", {})
        if any(attributes is now for now, _ in self._found):  # it holds itself
            return
        self._found.append((attributes, {}))
        then = self._found[-1][1]
        then.update((name, self._copied(value)) for name, value in attributes.items())

    def _copied(self, value: Argument) -> Any:
        """Returns what stays equal to a value as long as that does not change."""
        if isinstance(value, _PLAIN):
            return value
        if type(value) in (list, tuple):
            return type(value)(map(self._copied, value))
        if isinstance(value, (dict, set)) and len(value) == 0:
            return type(value)()
        if type(value) is dict:
            return {name: self._copied(each) for name, each in value.items()}
        if isinstance(value, _ARRAYS):
            self._arrays.append((value, value.tolist()))
            return value
        if _is_transform(value):
            self._add(value)
            return value
        raise Unknown


class ListSnapshot:
    """Which transforms a ``Compose`` holds, and its hooks; what these transforms hold is not seen.

    Attributes are compared by ``==``, which transforms have from ``object``.
    """

    def __init__(self, compose: Transform) -> None:
        self._now = vars(compose)
        self._then = {name: _shallow(value) for name, value in self._now.items()}

    def is_current(self) -> bool:
        """Whether it holds the same."""
        try:
            return self._now == self._then
        except Exception:  # of a custom __eq__, asked about another transform than before
            return False


def _shallow(value: Argument) -> Any:
    return copy.copy(value) if isinstance(value, (list, dict, set)) else value


def _is_transform(value: Argument) -> bool:
    return isinstance(value, torch.nn.Module) or type(value).__module__.startswith("torchvision.")
