"""Preparation for inference: lists of encoded images in, tensors out."""

from __future__ import annotations

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

    def __iter__(self) -> Requests:
        self.at = 0
        return self

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns what comes of a list, which is asked for again after an error."""
        asked = self.order[self.at : self.at + BATCH]
        if not asked:
            raise StopIteration
        found = self.prepare([self.images[index] for index in asked]), torch.tensor(asked)
        self.at += BATCH
        return found


def _requests(setting: Setting) -> Epochs:
    paths = [path for path, _ in images_of(setting).samples]
    workers = 1 if setting.plain else 2
    prepare = Preprocessor(eval_transform(), num_workers=workers)
    order = order_of(len(paths))
    images = [Path(path).read_bytes() for path in paths]
    return Epochs([Part(Requests(prepare, images, order), order)], prepare.close)


KINDS = (EpochKind("Preprocessor", _requests, any_order=False, is_short=False),)
