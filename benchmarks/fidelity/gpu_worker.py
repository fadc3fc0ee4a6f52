"""The GPU worker's rows, on DALI's CPU backend, against those of CPU workers."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode

from benchmarks.fidelity.decoding import FILES, jpeg
from benchmarks.fidelity.differences import Difference, Pixels
from fusionloader.transforms.executors.compiled_plan import CompiledPlan, compile_plan
from fusionloader.transforms.executors.device.make_task import HeadOptions, make_task
from fusionloader.transforms.executors.device.memory import of_tensor
from fusionloader.transforms.executors.device.task import EncodedSample, rows_in

INSTALL = "pip install 'fusionloader[dali]'"
SIDE = 96
_DRAWS = 3
_MOST_SAMPLES = 64
# Of the decoded values, those that a stand-in for another decoder moves up or down by a level.
OFF_SHARE = 0.25


def _resized(filter: InterpolationMode = InterpolationMode.BILINEAR) -> list[Any]:
    return [v1.RandomResizedCrop(SIDE, interpolation=filter), v1.RandomHorizontalFlip()]


TRANSFORMS: dict[str, list[Any]] = {
    "window": [v1.RandomCrop(SIDE, pad_if_needed=True), v1.RandomHorizontalFlip()],
    "resize, bilinear": _resized(),
    "resize, bicubic": _resized(InterpolationMode.BICUBIC),
    "resize, lanczos": _resized(InterpolationMode.LANCZOS),
    "resize, then crop": [v1.Resize(SIDE + 16), v1.CenterCrop(SIDE)],
    "ColorJitter": [*_resized(), v1.ColorJitter(0.4, 0.4, 0.4)],
    "GaussianBlur": [*_resized(), v1.GaussianBlur(9)],
    "posterize to 4 bits": [*_resized(), v1.RandomPosterize(4, p=1)],
    "solarize": [*_resized(), v1.RandomSolarize(128, p=1)],
    "equalize": [*_resized(), v1.RandomEqualize(p=1)],
    "autocontrast": [*_resized(), v1.RandomAutocontrast(p=1)],
    "RandAugment": [*_resized(), v1.RandAugment()],
    "AutoAugment": [*_resized(), v1.AutoAugment()],
    "TrivialAugmentWide": [*_resized(), v1.TrivialAugmentWide()],
}
"""What the rows of the table do, up to 8-bit levels."""


@dataclass
class Distances:
    """How far a transform's rows are from those of CPU workers.

    Attributes:
        kernel: with the fused kernel.
        off: what a CPU worker makes of pixels that are decoded a level off.
    """

    kernel: Difference = field(default_factory=Difference)
    off: Difference = field(default_factory=Difference)


def worker_rows(
    chosen: dict[str, Image.Image], names: Iterable[str] = TRANSFORMS, by_kernel: bool = True
) -> dict[str, Distances]:
    """The distances of some rows, over all kinds of JPEG files of the images.

    Without ``by_kernel`` those with the fused kernel are left out.
    """
    files = [
        jpeg(image, **options)
        for image in chosen.values()
        for options in (FILES.values() if image.mode == "RGB" else [{"quality": 85}])
    ]
    decoded = [np.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in files]
    rng = np.random.default_rng(7)
    off = [_a_level_off(pixels, rng) for pixels in decoded]
    return {name: _distances(name, files, decoded, off, by_kernel) for name in names}


def _distances(
    name: str,
    files: Sequence[bytes],
    decoded: Sequence[Pixels],
    off: Sequence[Pixels],
    by_kernel: bool,
) -> Distances:
    compiled = compile_plan(v1.Compose([*TRANSFORMS[name], v1.PILToTensor()]))
    made = Distances()
    wanted = []
    for key, pixels in _samples(decoded):
        operations = compiled.draw(pixels.shape[1], pixels.shape[0], index=key)
        wanted.append(compiled.apply(pixels, operations).numpy())
        made.off.add(compiled.apply(off[key % len(off)], operations).numpy(), wanted[-1])
    if by_kernel:
        for ours, theirs in zip(_by_worker(compiled, files), wanted, strict=True):
            made.kernel.add(ours.numpy(), theirs)
    return made


def _by_worker(compiled: CompiledPlan, files: Sequence[bytes]) -> torch.Tensor:
    task = make_task(compiled.plan, None, _MOST_SAMPLES, HeadOptions())
    given = list(_samples(files))
    out = torch.empty(len(given), 3, SIDE, SIDE, dtype=torch.uint8)
    rows = rows_in(of_tensor(out), len(given))
    refused = task.run(
        [
            EncodedSample(file, 0, 0, key, 0, 0, row, key)
            for (key, file), row in zip(given, rows, strict=True)
        ]
    )
    task.close()
    if reasons := set(refused) - {None}:
        raise RuntimeError(f"the GPU worker left rows to CPU workers: {reasons}")
    return out


def _samples(given: Sequence[Any]) -> Iterable[tuple[int, Any]]:
    """Each of ``given`` several times, by keys of which no two are the same."""
    return enumerate([*given] * _DRAWS)


def _a_level_off(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    moved = rng.random(pixels.shape) < OFF_SHARE
    levels = np.clip(pixels + moved * rng.choice((-1, 1), pixels.shape), 0, 255)
    off: Pixels = levels.astype(np.uint8)
    return off
