"""Samples of a compiled plan, one at a time, with whatever Python follows it."""

from __future__ import annotations

import io
from typing import Any

import torch

from fusionloader.executors.native import make_executor
from fusionloader.executors.python import SampleKey, seed_generators
from fusionloader.plan.compile import Compiled

_DTYPES = {
    "uint8": torch.uint8,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


class PlanSource:
    """Decodes and transforms natively; the Python tail and the target's transform run here."""

    loads_together = False

    def __init__(self, dataset: Any, compiled: Compiled) -> None:
        self.dataset = dataset
        self._compiled = compiled
        self._executor: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return PlanSource, (self.dataset, self._compiled)

    def load(self, key: SampleKey) -> Any:
        """Returns ``(image, target)`` as the dataset would."""
        compiled = self._compiled
        encoded, target = compiled.read(self.dataset, key.index)
        if compiled.tail is not None or compiled.target_transform is not None:
            seed_generators(key)
        image = self._image(encoded, key)
        if compiled.tail is not None:
            image = compiled.tail(image)
        if compiled.target_transform is not None:
            target = compiled.target_transform(target)
        return image, target

    def _image(self, encoded: bytes, key: SampleKey) -> Any:
        if self._executor is None:
            self._executor = make_executor(self._compiled.plan)
        executor, plan = self._executor, self._compiled.plan
        draws = (key.seed, key.epoch, key.key, key.occurrence)
        if plan.convert is None or plan.height is None or plan.width is None:
            return self._pixels(encoded, draws)
        shape = (3, plan.height, plan.width)
        if plan.convert.layout == "hwc":
            shape = (plan.height, plan.width, 3)
        image = torch.empty(shape, dtype=_DTYPES[plan.convert.element_type])
        out = image.view(torch.uint8).numpy().reshape(-1)
        if executor.run(encoded, *draws, out) != 0:
            executor.run_pixels(decode_with_pillow(encoded), *draws, out)
        return image

    def _pixels(self, encoded: bytes, draws: tuple[int, int, int, int]) -> Any:
        raise NotImplementedError

    def name(self, key: SampleKey) -> str:
        """Returns ``index 5 (cats/5.jpg)``."""
        return self._compiled.name(self.dataset, key.index)

    def count(self) -> int:
        """Returns ``len(dataset)``."""
        return len(self.dataset)


def decode_with_pillow(encoded: bytes) -> Any:
    """Returns height x width x 3 pixels as torchvision's default loader makes them.

    Raises:
        PIL.UnidentifiedImageError: not an image.
        OSError: a truncated one.
        PIL.Image.DecompressionBombError: larger than Pillow accepts.
    """
    import numpy as np
    from PIL import Image

    with Image.open(io.BytesIO(encoded)) as image:
        return np.asarray(image.convert("RGB"))
