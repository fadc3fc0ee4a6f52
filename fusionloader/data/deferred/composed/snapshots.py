"""Snapshots of a transform's attributes, to detect whether the program has changed one since."""

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
    """A value whose changes cannot be detected."""


class Snapshot:
    """The attributes of a transform and of the transforms within it.

    Raises:
        Unknown: changes of one of them cannot be detected.
    """

    def __init__(self, step: Transform) -> None:
        self._found: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._arrays: list[tuple[Any, Any]] = []
        self._add(step)

    def is_current(self) -> bool:
        try:
            return all(now == then for now, then in self._found) and all(
                array.tolist() == values for array, values in self._arrays
            )
        except (RuntimeError, ValueError):  # an array without a truth value: it was not there then
            return False

    def _add(self, step: Transform) -> None:
        attributes = getattr(step, "__dict__", {})
        if any(attributes is now for now, _ in self._found):  # it holds itself
            return
        self._found.append((attributes, {}))
        then = self._found[-1][1]
        then.update((name, self._copied(value)) for name, value in attributes.items())

    def _copied(self, value: Argument) -> Any:
        """Returns a copy that equals the value until the value is changed."""
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
    """The transforms in a ``Compose`` and its hooks, without the attributes of these transforms.

    Transforms are compared by ``==``, which they inherit from ``object``.
    """

    def __init__(self, compose: Transform) -> None:
        self._now = vars(compose)
        self._then = {name: _shallow(value) for name, value in self._now.items()}

    def is_current(self) -> bool:
        try:
            return self._now == self._then
        except Exception:  # raised by a custom __eq__ for a transform that was not there then
            return False


def _shallow(value: Argument) -> Any:
    return copy.copy(value) if isinstance(value, (list, dict, set)) else value


def _is_transform(value: Argument) -> bool:
    return isinstance(value, torch.nn.Module) or type(value).__module__.startswith("torchvision.")
