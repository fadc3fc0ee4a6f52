"""torchvision's transforms on deferred images: the same draws and operations, without its code.

Calls between torchvision's functions take longer than its draws. A recorder draws the numbers that
torchvision would draw, in the same order, from torch's generator where that lies in memory
(``csrc/plan/torch_drawing.cpp``), and records the same operations. ``trials`` compares each
recorder with its transform before the recorder is used.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch

from fusionloader import _native
from fusionloader.data.deferred.core import DeferredCore
from fusionloader.transforms.executors.python import locate_generators
from fusionloader.transforms.plan import stages
from fusionloader.transforms.plan.arguments import Context, NestedTooDeep, NotCompiled, Transform
from fusionloader.transforms.plan.patches import is_patched
from fusionloader.transforms.plan.stage_makers import make_stage

Held: TypeAlias = Literal["pil", "tensor"]
"""What holds the images that are recorded, as ``Context.held``."""

_KEEPING_SIZE = (
    stages.RandomHorizontalFlip,
    stages.RandomVerticalFlip,
    stages.RandomApply,
    stages.Fixed,
    stages.ColorJitter,
    stages.GaussianBlur,
)
_RECORDED = (
    *(stages.RandomResizedCrop, stages.CenterCrop, stages.RandomCrop),
    *(stages.Resize, stages.ResizeShorterSide, *_KEEPING_SIZE),
)
# torchvision's grayscale tensor is a view of one channel.
_LEFT_OF_TENSORS = ("grayscale", "pad")


class TransformRecorder:
    """Records one transform of RGB images, or several in turn."""

    __slots__ = ("_generators", "_held", "_native", "_stages")

    def __init__(
        self, in_turn: Sequence[stages.Stage], generators: _native.Generators, held: Held
    ) -> None:
        self._stages, self._generators, self._held = tuple(in_turn), generators, held
        ratios = [getattr(stage, "ratio", (1.0, 1.0)) for stage in in_turn]
        logs = [torch.log(torch.tensor(ratio)).tolist() for ratio in ratios]
        self._native = _native.TorchRecorder(generators, self._stages, logs, _exp)

    def then(self, other: TransformRecorder) -> TransformRecorder:
        """Returns the recorder of these transforms and others, which takes one call."""
        return TransformRecorder((*self._stages, *other._stages), self._generators, self._held)

    def record(
        self, core: DeferredCore, most_pixels: float | None = None
    ) -> tuple[DeferredCore, int]:
        """Returns the core after the transforms that could be recorded, and their number.

        None is recorded of an image with more than ``most_pixels``.

        Draws as these do, and nothing for the next one, which has to be called. Beside other
        threads none is recorded: native draws do not hold the lock of torch's generator.
        """
        if not is_alone():
            return core, 0
        least_side = 2 if self._held == "tensor" else 1  # torch fails to resize to a single pixel
        limits = (least_side,) if most_pixels is None else (least_side, most_pixels)
        operations, size, done, is_new = self._native.draw(*core.size, *limits)
        return (core.after(operations, size) if is_new else core), done


def is_alone() -> bool:
    """Whether no other thread of Python can draw from torch's generator."""
    return threading.active_count() == 1


def make_recorder(step: Transform, held: Held = "pil") -> TransformRecorder | None:
    """Returns the recorder of a transform; ``None`` if the transform has to be called."""
    generators, _ = locate_generators()
    if generators is None or torch.get_default_dtype() is not torch.float32:
        return None
    if torch.get_default_device().type != "cpu":  # torchvision draws from another generator
        return None
    stage = _find_stage(step, held)
    return None if stage is None else TransformRecorder((stage,), generators, held)


def _find_stage(step: Transform, held: Held) -> stages.Stage | None:
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    if is_patched(step):
        return None
    if type(step) in (v1.RandomApply, v2.RandomApply):
        return _random_apply(step, held, inclusive=type(step) is v1.RandomApply)
    try:
        stage = make_stage(step, Context(3, held))
    except (NotCompiled, NestedTooDeep):
        return None
    return stage if _is_recorded(stage, held) else None


def _is_recorded(stage: stages.Stage | None, held: Held) -> bool:
    if isinstance(stage, stages.RandomApply):
        return all(_is_recorded(each, held) for each in stage.stages) and _keeps_size(stage)
    if isinstance(stage, stages.RandomCrop) and (any(stage.padding) or stage.pad_if_needed):
        return False
    left = ("pad",) if held == "pil" else _LEFT_OF_TENSORS
    is_left = isinstance(stage, stages.Fixed) and stage.operation[0] in left
    return isinstance(stage, _RECORDED) and not is_left


def _keeps_size(stage: stages.RandomApply) -> bool:
    return all(isinstance(inner, _KEEPING_SIZE) for inner in stage.stages)


def _random_apply(step: Transform, held: Held, inclusive: bool) -> stages.RandomApply | None:
    """Returns the stage of ``RandomApply``; ``inclusive`` if a draw equal to p applies it."""
    if type(step.transforms) not in (list, tuple):
        return None
    found = [_find_stage(inner, held) for inner in step.transforms]
    probability = np.float32(step.p)
    if inclusive:
        probability = np.nextafter(probability, np.float32(np.inf))
    stage = stages.RandomApply(float(probability), tuple(filter(None, found)))
    return stage if len(stage.stages) == len(found) and _keeps_size(stage) else None


def _exp(value: float) -> float:
    return torch.exp(torch.tensor(value)).item()
