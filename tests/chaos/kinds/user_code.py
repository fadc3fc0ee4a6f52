"""Datasets in Python: sample by sample, in whole batches, and as streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from chaos.kinds.image_plans import epochs_of
from chaos.kinds.setting import (
    BATCH,
    IMAGES,
    SKIPS,
    EpochKind,
    Epochs,
    Part,
    Setting,
    order_of,
)
from chaos.traps import WorkerInit, spring
from fusionloader import FusionLoader


class Noise(Dataset[Any]):
    """Samples that are drawn from the global generator."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> Any:
        spring(self.folder, "sample", index)
        return torch.rand(30, 30) @ torch.rand(30, 30), index


class Sampler:
    """Indices, until a trap is sprung."""

    def __init__(self, folder: str, order: list[int]) -> None:
        self.folder, self.order = folder, order

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[int]:
        for index in self.order:
            spring(self.folder, "sampler")
            yield index


class Collate:
    """A function of the user's own, which makes batches be made as a whole."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, samples: list[Any]) -> Any:
        spring(self.folder, "collate")
        noise, numbers = default_collate(samples)
        return {"noise": noise, "number": numbers}


class Stream(IterableDataset[Any]):
    """A part for each worker."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        for index in range(info.id, 3 * IMAGES, info.num_workers):
            spring(self.folder, "sample", index)
            yield torch.rand(30) * index, index


def noise_part(setting: Setting, number: int = 0, **options: Any) -> Part:
    order = order_of(IMAGES, number)
    common = {"num_workers": 2, "seed": 5, "on_error": setting.on_error}
    common |= {"worker_init_fn": WorkerInit(setting.folder)}
    sampler = Sampler(setting.folder, order)
    loader = FusionLoader(Noise(setting.folder), BATCH, sampler=sampler, **(common | options))
    return Part(loader, order)


def _samples(setting: Setting) -> Epochs:
    return epochs_of(noise_part(setting))


def _kept(setting: Setting) -> Epochs:
    return epochs_of(noise_part(setting, persistent_workers=not setting.plain))


def _whole(setting: Setting) -> Epochs:
    return epochs_of(noise_part(setting, collate_fn=Collate(setting.folder)))


def _stream(setting: Setting) -> Epochs:
    # Workers take turns to make a batch of their own part, so an epoch has no order of samples.
    loader = FusionLoader(Stream(setting.folder), BATCH, num_workers=2, seed=5)
    return epochs_of(Part(loader, []))


_TRAPS = ("sample", "sampler", "worker_init_fn")

KINDS = (
    EpochKind("own dataset", _samples, subject_to=frozenset({SKIPS}), traps=_TRAPS),
    EpochKind(
        "own dataset, persistent workers",
        _kept,
        is_short=False,
        subject_to=frozenset({SKIPS}),
        traps=_TRAPS,
    ),
    EpochKind("whole batches", _whole, traps=(*_TRAPS, "collate"), replaces_workers=False),
    EpochKind("stream", _stream, is_short=False, traps=("sample",), replaces_workers=False),
)
