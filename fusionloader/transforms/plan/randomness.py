"""Whether a plan's results depend on random draws."""

from __future__ import annotations

from collections.abc import Iterable

from fusionloader.transforms.plan.stages import (
    CenterCrop,
    CropOrPad,
    Fixed,
    Resize,
    ResizeKeepRatio,
    ResizeShorterSide,
    Stage,
    TrimBorder,
)

_WITHOUT_DRAWS = (CenterCrop, Fixed, Resize, ResizeShorterSide, TrimBorder)


def is_random(stages: Iterable[Stage]) -> bool:
    """Whether any of the stages draws something; stages not known here are taken to."""
    return not all(map(_is_determined, stages))


def _is_determined(stage: Stage) -> bool:
    if isinstance(stage, CropOrPad):
        return not stage.random
    if isinstance(stage, ResizeKeepRatio):
        probabilities = (stage.scale_probability, stage.aspect_probability)
        return len(stage.filters) == 1 and not any(probabilities)
    return isinstance(stage, _WITHOUT_DRAWS)
