"""Loaders of one pool of workers: beside each other, and in its background."""

from __future__ import annotations

from support.images import eval_transform

from chaos.kinds.image_plans import images_of, part_of
from chaos.kinds.setting import SKIPS, EpochKind, Epochs, Setting
from chaos.kinds.user_code import noise_part
from fusionloader import WorkerPool


def _beside(setting: Setting) -> Epochs:
    pool = None if setting.plain else WorkerPool(2)
    workers = {"num_workers": 2} if pool is None else {"num_workers": 0, "pool": pool}
    parts = [part_of(images_of(setting), setting, 0, **workers), noise_part(setting, 1, **workers)]
    return Epochs(parts, _close_of(parts, pool))


def _background(setting: Setting) -> Epochs:
    pool = None if setting.plain else WorkerPool(2)
    first = {"num_workers": 2} if pool is None else {"num_workers": 0, "pool": pool}
    second = {"num_workers": 2} if pool is None else {"num_workers": 0, "pool": pool.background()}
    parts = [
        part_of(images_of(setting), setting, 0, **first),
        part_of(images_of(setting, eval_transform()), setting, 1, **second),
    ]
    return Epochs(parts, _close_of(parts, pool))


def _close_of(parts, pool):
    def close() -> None:
        for part in parts:
            part.loader.close()
        if pool is not None:
            pool.close()

    return close


KINDS = (
    EpochKind(
        "pool of two loaders",
        _beside,
        in_suite=True,
        subject_to=frozenset({SKIPS}),
        traps=("sample", "sampler"),
    ),
    EpochKind("validation in a pool's background", _background, subject_to=frozenset({SKIPS})),
)
