"""Preparation for inference: lists of encoded images in, tensors out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from support.images import eval_transform

from chaos.kinds.image_plans import images_of
from chaos.kinds.setting import BATCH, EpochKind, Epochs, Part, Setting, order_of
from fusionloader.inference import Preprocessor


class Requests:
    """Lists of images, one after the other."""

    def __init__(self, prepare: Preprocessor, images: list[bytes], order: list[int]) -> None:
        self.prepare, self.images, self.order = prepare, images, order

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for first in range(0, len(self.order), BATCH):
            asked = self.order[first : first + BATCH]
            yield self.prepare([self.images[index] for index in asked]), torch.tensor(asked)


def _requests(setting: Setting) -> Epochs:
    paths = [path for path, _ in images_of(setting).samples]
    workers = 1 if setting.plain else 2
    prepare = Preprocessor(eval_transform(), num_workers=workers)
    order = order_of(len(paths))
    images = [Path(path).read_bytes() for path in paths]
    return Epochs([Part(Requests(prepare, images, order), order)], prepare.close)


KINDS = (EpochKind("Preprocessor", _requests, is_short=False),)
