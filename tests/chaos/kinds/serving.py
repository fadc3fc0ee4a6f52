"""Preparation for inference: lists of encoded images in, tensors out."""

from __future__ import annotations

from pathlib import Path

import torch
from support.images import eval_transform

from chaos.kinds.image_plans import images_of
from chaos.kinds.setting import BATCH, EpochKind, Epochs, Part, Setting, order_of
from fusionloader.addons.inference import Preprocessor, PreprocessorClosed


class Requests:
    """Lists of images, one after the other."""

    def __init__(self, workers: int, images: list[bytes], order: list[int]) -> None:
        self.workers, self.images, self.order = workers, images, order
        self.prepare, self.is_over = self._made(), False

    def _made(self) -> Preprocessor:
        return Preprocessor(eval_transform(), num_workers=self.workers)

    def __iter__(self) -> Requests:
        """Begins with another ``Preprocessor`` where the last one has said that it cannot go on."""
        if self.is_over:
            self.prepare.close()
            self.prepare, self.is_over = self._made(), False
        self.at = 0
        return self

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns what comes of a list, which is asked for again after an error."""
        asked = self.order[self.at : self.at + BATCH]
        if not asked:
            raise StopIteration
        try:
            prepared = self.prepare([self.images[index] for index in asked])
        except PreprocessorClosed:
            self.is_over = True
            raise
        self.at += BATCH
        return prepared, torch.tensor(asked)

    def close(self) -> None:
        self.prepare.close()


def _requests(setting: Setting) -> Epochs:
    paths = [path for path, _ in images_of(setting).samples]
    workers = 1 if setting.plain else 2
    order = order_of(len(paths))
    requests = Requests(workers, [Path(path).read_bytes() for path in paths], order)
    return Epochs([Part(requests, order)], requests.close)


KINDS = (EpochKind("Preprocessor", _requests, any_order=False),)
