"""Datasets in Python: sample by sample, in whole batches, and as streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from chaos.kinds.image_plans import epochs_of
from chaos.kinds.setting import BATCH, IMAGES, SKIPS, EpochKind, Epochs, Part, Setting, order_of
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
        drawn = torch.rand(2, 30, 30)
        return drawn[0] @ drawn[1], index


class Shapes(Noise):
    """Samples of two shapes, of which slots are made for one."""

    def __getitem__(self, index: int) -> Any:
        drawn, _ = super().__getitem__(index)
        return (drawn if index % 2 else drawn[:20]), index


class NoiseOfFiles(Noise):
    """Samples of which each worker has parts of its own."""

    def sample_file(self, index: int) -> int:
        return index % 5


class Keyed(Noise):
    """Samples that draw from no generator of the process, where training draws, too."""

    def __getitem__(self, index: int) -> Any:
        spring(self.folder, "sample", index)
        return torch.rand(30, generator=torch.Generator().manual_seed(index)), index


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
    """A part for each worker, which knows where it is."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.begun = self.place = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        begun, self.begun = self.begun, 0
        for place, index in enumerate(range(info.id, 3 * IMAGES, info.num_workers)):
            if place >= begun:
                self.place = place + 1
                spring(self.folder, "sample", index)
                yield torch.rand(30) * index, index

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begun = self.place = state["place"]


def noise_part(setting: Setting, number: int = 0, **options: Any) -> Part:
    return part_of_noise(Noise(setting.folder), setting, order_of(IMAGES, number), **options)


def part_of_noise(dataset: Noise, setting: Setting, order: list[int], **options: Any) -> Part:
    common = {"num_workers": 2, "seed": 5, "tiny_batch_size": 2}
    common |= {"on_error": setting.on_error, "in_order": setting.in_order}
    common |= {"worker_init_fn": WorkerInit(setting.folder)}
    sampler = Sampler(setting.folder, order)
    loader = FusionLoader(dataset, BATCH, sampler=sampler, **(common | options))
    return Part(loader, order)


def _samples(setting: Setting) -> Epochs:
    return epochs_of(noise_part(setting))


def _of_files(setting: Setting) -> Epochs:
    dataset = Noise(setting.folder) if setting.plain else NoiseOfFiles(setting.folder)
    options = {"num_workers": 3, "tiny_batch_size": 1}
    return epochs_of(part_of_noise(dataset, setting, order_of(IMAGES), **options))


def _in_training(setting: Setting) -> Epochs:
    workers = 1 if setting.plain else 0
    dataset = Keyed(setting.folder)
    return epochs_of(part_of_noise(dataset, setting, order_of(IMAGES), num_workers=workers))


def _kept(setting: Setting) -> Epochs:
    return epochs_of(noise_part(setting, persistent_workers=not setting.plain))


def _whole(setting: Setting) -> Epochs:
    return epochs_of(noise_part(setting, collate_fn=Collate(setting.folder)))


def _shapes(setting: Setting) -> Epochs:
    """Batches of the one shape and of the other in turns."""
    order = order_of(IMAGES)
    own = [[index for index in order if index % 2 == shape] for shape in range(2)]
    starts = range(0, len(own[0]), BATCH)
    order = [index for at in starts for part in own for index in part[at : at + BATCH]]
    return epochs_of(part_of_noise(Shapes(setting.folder), setting, order))


def _stream(setting: Setting) -> Epochs:
    options = {"num_workers": 2, "seed": 5, "in_order": setting.in_order}
    loader = FusionLoader(Stream(setting.folder), BATCH, **options)
    # Workers take turns to make a batch of their own part.
    own = [range(worker, 3 * IMAGES, 2) for worker in range(2)]
    starts = range(0, len(own[0]), BATCH)
    order = [index for at in starts for part in own for index in part[at : at + BATCH]]
    return epochs_of(Part(loader, order))


_TRAPS = ("sample", "sampler", "worker_init_fn")

KINDS = (
    EpochKind("own dataset", _samples, subject_to=frozenset({SKIPS}), traps=_TRAPS),
    EpochKind(
        "own dataset with sample_file", _of_files, subject_to=frozenset({SKIPS}), traps=_TRAPS
    ),
    EpochKind(
        "own dataset without workers",
        _in_training,
        subject_to=frozenset({SKIPS}),
        traps=("sample", "sampler"),
        any_order=False,
        in_training=True,
    ),
    EpochKind(
        "own dataset, persistent workers", _kept, subject_to=frozenset({SKIPS}), traps=_TRAPS
    ),
    EpochKind("own dataset of two shapes", _shapes, subject_to=frozenset({SKIPS}), traps=_TRAPS),
    EpochKind("whole batches", _whole, subject_to=frozenset({SKIPS}), traps=(*_TRAPS, "collate")),
    EpochKind("stream", _stream, traps=("sample",), ends_with=("sample",)),
)
