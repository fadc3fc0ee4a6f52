"""Which plans the GPU worker can run.

Its work has two parts, which are built ahead of time and get each sample's parameters. The *head*
decodes a window of the image; a decoder of the user also resizes and mirrors it. *Augment* does
everything else, up to writing the row of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusionloader.transforms.plan.stages import (
    AugMix,
    Fixed,
    Plan,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    ResizeKeepRatio,
    ResizeShorterSide,
    Stage,
    flat,
    get_rounding,
)

_RESIZES = (RandomResizedCrop, Resize, ResizeKeepRatio, ResizeShorterSide)


def why_not(plan: Plan, head_filters: Sequence[str] | None) -> str | None:
    """Returns which stage the GPU worker cannot run, and why; ``None`` if it can run the plan.

    ``head_filters`` are the filters that the head can resize with, if a resize comes first in the
    plan; ``None`` if the fused kernel resizes.
    """
    if plan.decode == "fast" and any(isinstance(stage, _RESIZES) for stage in flat(plan.stages)):
        return 'decode="fast" resizes by another filter, which it does not have'
    if plan.works_on_floats:
        return "stages work on floats, after the conversion"
    for place, stage in enumerate(flat(plan.stages)):
        if isinstance(stage, AugMix):
            return "AugMix mixes several images"
        if isinstance(stage, Fixed) and stage.operation[0] == "channels":
            return "RandomPhotometricDistort permutes channels"
        roundings = {get_rounding(stage), getattr(stage, "warp_rounding", "pillow")}
        if roundings != {"pillow"} or any(name.startswith("float_") for name in _filters(stage)):
            return f"{type(stage).__name__} rounds as torchvision does on tensors"
        noisy = isinstance(stage, RandomErasing) and not stage.values and stage.noise_per_pixel
        if noisy:
            return "RandomErasing with noise, which a device would round otherwise"
        if head_filters is not None and isinstance(stage, _RESIZES) and place > 0:
            return f"{type(stage).__name__} does not come first"
    return _unknown_filter(plan.stages, head_filters)


def _unknown_filter(stages: Iterable[Stage], known: Sequence[str] | None) -> str | None:
    if known is None:
        return None
    for stage in flat(stages):
        if isinstance(stage, _RESIZES):
            for name in _filters(stage):
                if name not in known:
                    return f"{type(stage).__name__} uses the {name} filter"
    return None


def _filters(stage: Stage) -> Sequence[str]:
    if isinstance(stage, RandomResizedCrop | ResizeKeepRatio):
        return stage.filters
    return (stage.filter,) if isinstance(stage, _RESIZES) else ()
