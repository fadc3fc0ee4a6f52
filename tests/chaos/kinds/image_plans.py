"""Loaders of image folders: transforms that are compiled, with and without a part in Python."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import torch
from support.images import train_transform
from support.waiting import wait_until
from torchvision import transforms
from torchvision.datasets import ImageFolder

from chaos.kinds.setting import (
    BATCH,
    FILES,
    REPEATS,
    SKIPS,
    EpochKind,
    Epochs,
    Part,
    Setting,
    order_of,
)
from chaos.traps import WorkerInit, spring
from fusionloader import FusionLoader
from fusionloader.observe.statistics.snapshot import LoaderStats


class Tail:
    """A transform that cannot be compiled."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        spring(self.folder, "transform")
        return image * 2 + torch.rand(1)


def images_of(setting: Setting, transform: Any = None) -> ImageFolder:
    try:
        return ImageFolder(setting.images, transform or train_transform())
    except FileNotFoundError as error:  # its os.walk() hides that no folder can be opened
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error


def part_of(
    dataset: ImageFolder, setting: Setting, number: int = 0, repeats: int = REPEATS, **options: Any
) -> Part:
    """A loader of all images in an order of the part's own."""
    order = order_of(len(dataset), number, repeats)
    common = {"batch_size": BATCH, "num_workers": 2, "seed": 5, "tiny_batch_size": 2}
    common |= {"on_error": setting.on_error, "in_order": setting.in_order}
    loader = FusionLoader(dataset, sampler=order, **(common | options))
    return Part(loader, order, [path for path, _ in dataset.samples])


def epochs_of(*parts: Part) -> Epochs:
    def close() -> None:
        for part in parts:
            part.loader.close()

    return Epochs(list(parts), close)


def helped(epochs: Epochs, samples: Callable[[LoaderStats], int]) -> Epochs:
    """Returns the epochs when others than the loader's own workers make samples of it, too."""
    (part,) = epochs.parts

    def is_helped() -> bool:
        for _ in part.loader:
            pass
        return samples(part.loader.stats()) > 0

    wait_until(is_helped, "nobody helps the loader's own workers")
    return epochs


def _plan(setting: Setting) -> Epochs:
    return epochs_of(part_of(images_of(setting), setting, worker_init_fn=None))


def _spawned(setting: Setting) -> Epochs:
    context = None if setting.plain else "spawn"
    return epochs_of(part_of(images_of(setting), setting, multiprocessing_context=context))


def _in_training(setting: Setting) -> Epochs:
    workers = 1 if setting.plain else 0
    return epochs_of(part_of(images_of(setting), setting, num_workers=workers))


def _tail(setting: Setting) -> Epochs:
    transform = transforms.Compose([train_transform(), Tail(setting.folder)])
    dataset = images_of(setting, transform)
    return epochs_of(part_of(dataset, setting, worker_init_fn=WorkerInit(setting.folder)))


KINDS = (
    EpochKind("plan", _plan, subject_to=frozenset({FILES, SKIPS})),
    EpochKind("plan, spawned workers", _spawned, subject_to=frozenset({FILES, SKIPS})),
    EpochKind(
        "plan without workers",
        _in_training,
        subject_to=frozenset({FILES, SKIPS}),
        any_order=False,
        in_training=True,
    ),
    EpochKind(
        "plan with a Python tail",
        _tail,
        in_suite=True,
        subject_to=frozenset({FILES, SKIPS}),
        traps=("transform", "worker_init_fn"),
    ),
)
