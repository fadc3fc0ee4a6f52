"""Transforms of this package itself, which tell the stage that they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from fusionloader.plan.arguments import Context
from fusionloader.plan.stages import Stage


class _StageTransform(Protocol):
    def stage(self, context: Context) -> Stage: ...


Kind = TypeVar("Kind", bound=type[_StageTransform])
_CONVERTERS: dict[type, Callable[[Any, Context], Stage]] = {}


def register_stage_transform(kind: Kind) -> Kind:
    """Has transforms of this class, but none of its subclasses, compiled to their ``stage``."""
    _CONVERTERS[kind] = kind.stage
    return kind


def converters() -> Mapping[type, Callable[[Any, Context], Stage]]:
    """Returns a function from transform and ``Context`` to stage for every class known here."""
    return _CONVERTERS
