"""Loaders that keep what they have read in memory."""

from __future__ import annotations

from typing import Any

from chaos.kinds.image_plans import epochs_of, images_of, part_of
from chaos.kinds.setting import EpochKind, Epochs, Setting
from fusionloader import Cache, DecodedCache


def _with(cache: Any, setting: Setting, **options: Any) -> Epochs:
    used = None if setting.plain else cache
    return epochs_of(part_of(images_of(setting), setting, cache=used, **options))


def _memory(setting: Setting) -> Epochs:
    return _with(Cache("16MiB"), setting)


def _decoded(setting: Setting) -> Epochs:
    return _with(DecodedCache("16MiB"), setting)


_HITS = "samples from a cache"
KINDS = (
    EpochKind("cache in memory", _memory, made_by=_HITS),
    EpochKind("cache of decoded images", _decoded, in_suite=True, made_by=_HITS),
)
