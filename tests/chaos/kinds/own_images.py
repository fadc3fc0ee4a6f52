"""Datasets that open image files themselves, and transform them with torchvision."""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image
from support.images import NORMALIZE, train_transform
from torch.utils.data import Dataset
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from chaos.kinds.image_plans import epochs_of, images_of
from chaos.kinds.setting import BATCH, FILES, SKIPS, EpochKind, Epochs, Part, Setting, order_of
from chaos.traps import WorkerInit, spring
from fusionloader import FusionLoader

_SIZE = 32


class OwnImages(Dataset[Any]):
    """Opened with Pillow; some are kept, one is read twice."""

    def __init__(self, setting: Setting) -> None:
        self.folder = setting.folder
        self.paths = [path for path, _ in images_of(setting).samples]
        self.transform = train_transform(_SIZE)
        self.kept: list[Any] = []

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        spring(self.folder, "sample", index)
        try:
            made = self.make(self.paths[index])
        except (OSError, RuntimeError) as error:  # not all name the file
            raise OSError(f"{self.paths[index]}: {error}") from error
        if index % 7 == 0:
            self.kept = [made]
        return made, index

    def make(self, path: str) -> Any:
        return self.transform(Image.open(path).convert("RGB"))


class OwnTensors(OwnImages):
    """Decoded by torchvision."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop(_SIZE, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.ColorJitter(0.4, 0.4, 0.4),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(*NORMALIZE),
            ]
        )

    def make(self, path: str) -> Any:
        return self.transform(decode_image(path, ImageReadMode.RGB))


def _epochs(dataset: OwnImages, defer: Any, setting: Setting) -> Epochs:
    order = order_of(len(dataset))
    options = {"num_workers": 2, "seed": 5, "tiny_batch_size": 2}
    options |= {"on_error": setting.on_error, "in_order": setting.in_order}
    options |= {"worker_init_fn": WorkerInit(setting.folder)}
    options |= {"deferred_images": "off" if setting.plain else defer}
    loader = FusionLoader(dataset, BATCH, sampler=order, **options)
    return epochs_of(Part(loader, order, dataset.paths))


def _images(setting: Setting) -> Epochs:
    return _epochs(OwnImages(setting), "auto", setting)


def _tensors(setting: Setting) -> Epochs:
    return _epochs(OwnTensors(setting), "tensors", setting)


_BOTH: dict[str, Any] = {
    "subject_to": frozenset({FILES, SKIPS}),
    "traps": ("sample", "worker_init_fn"),
    "made_by": "deferred files",
}

KINDS = (
    EpochKind("own images", _images, **_BOTH),
    EpochKind("own images decoded to tensors", _tensors, **_BOTH),
)
