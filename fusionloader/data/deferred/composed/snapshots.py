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


class Snapshots:
    """The attributes of transforms and of the transforms within them."""

    def __init__(self) -> None:
        # Two lists, so that Python compares all attributes in one call.
        self._now: list[dict[str, Any]] = []
        self._then: list[dict[str, Any]] = []
        self._arrays: list[tuple[Any, Any]] = []

    def add(self, step: Transform) -> bool:
        """Adds a transform; returns whether later changes of it can be detected."""
        counts = len(self._now), len(self._arrays)
        try:
            self._add(step)
        except Unknown:
            del self._now[counts[0] :], self._then[counts[0] :], self._arrays[counts[1] :]
            return False
        return True

    def are_current(self) -> bool:
        try:
            return self._now == self._then and all(
                array.tolist() == values for array, values in self._arrays
            )
        except (RuntimeError, ValueError):  # an array without a truth value: it was not there then
            return False

    def _add(self, step: Transform) -> None:
        attributes = getattr(step, "__dict__", {})
        if any(attributes is now for now in self._now):  # seen, or it holds itself
            return
        then: dict[str, Any] = {}
        self._now.append(attributes)
        self._then.append(then)
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
