"""This package's own transforms, which make their stage themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from fusionloader.transforms.plan.arguments import Context, Converter
from fusionloader.transforms.plan.stages import Stage


class _StageTransform(Protocol):
    def stage(self, context: Context) -> Stage: ...


Kind = TypeVar("Kind", bound=type[_StageTransform])
_CONVERTERS: dict[type, Converter] = {}


def register_stage_transform(kind: Kind) -> Kind:
    """Makes transforms of exactly this class compile to what their method ``stage`` returns."""
    _CONVERTERS[kind] = kind.stage
    return kind


def converters() -> Mapping[type, Converter]:
    """Returns the converter of each registered class."""
    return _CONVERTERS
