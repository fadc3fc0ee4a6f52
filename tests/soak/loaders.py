"""Loaders that are made, used a little or not at all, and dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from support.images import eval_transform
from torch.utils.data import Dataset, IterableDataset
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, WorkerPool


class Own(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((64,), index)


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def _used(loader: Any) -> None:
    """Drops an iterator after its first batch."""
    next(iter(loader))


def _whole(loader: Any) -> None:
    for _ in loader:
        pass


def drop_some(images: str, number: int) -> None:
    """Makes the loader that it is the turn of, uses it, and drops it without closing it."""
    folder = ImageFolder(images, eval_transform())
    turn = number % 8
    if turn == 0:
        _used(FusionLoader(folder, 4, num_workers=1))
    elif turn == 1:
        _whole(FusionLoader(folder, 8, num_workers=1, persistent_workers=True))
    elif turn == 2:
        _used(FusionLoader(Own(), 4, num_workers=1))
    elif turn == 3:
        _used(FusionLoader(Stream(), 4, num_workers=1))
    elif turn == 4:
        _used(FusionLoader(Own(), 4, num_workers=1, collate_fn=list))
    elif turn == 5:
        with WorkerPool(1) as pool:
            _used(FusionLoader(Own(), 4, pool=pool))
            _used(FusionLoader(folder, 4, pool=pool))
    elif turn == 6:
        iter(FusionLoader(folder, 4, num_workers=1))
    else:
        FusionLoader(folder, 4, num_workers=1).explain()
