"""How torchvision's tensors lie in memory after a stage, as far as it is known."""

from __future__ import annotations

from typing import Literal

from fusionloader.transforms.plan.stages import (
    AugMix,
    CenterCrop,
    ColorJitter,
    Fixed,
    GaussianBlur,
    RandomAffine,
    RandomCrop,
    RandomHorizontalFlip,
    RandomPerspective,
    RandomPolicy,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
    ResizeShorterSide,
    Stage,
    flat,
    get_branches,
)

Effect = Literal["kept", "window", "planar", "unsure"]
_KEEPING = ("invert", "posterize", "solarize", "sharpness", "autocontrast")
_PLANAR = (GaussianBlur, RandomAffine, RandomPerspective, RandomRotation)
_OF_V2 = ("torch_v2", "torch_v2_unfused", "torch_unfilled", "torch_unfilled_unfused")


def effect_of(stage: Stage, by_v1: bool, least: tuple[int, int], windowed: bool) -> Effect:
    """Returns what a stage does to a tensor of at least ``least`` pixels (height, width).

    It may keep how the tensor lies in memory, make a window of it or let it lie channel by channel.
    ``windowed`` says whether it may be a window already.
    """
    if branches := get_branches(stage):
        inner = [effect_of(each, by_v1, (0, 0), True) for branch in branches for each in branch]
        different = set(inner) - {"kept"}
        return "kept" if not different else "window" if different == {"window"} else "unsure"
    if isinstance(stage, RandomHorizontalFlip | RandomVerticalFlip):
        return "kept"
    if isinstance(stage, CenterCrop):
        return "window" if least[0] >= stage.height and least[1] >= stage.width else "unsure"
    if isinstance(stage, RandomCrop):
        return "unsure" if any(stage.padding) or stage.pad_if_needed else "window"
    # It is a window if it has just the size of the result, which is too rare to count.
    if isinstance(stage, RandomResizedCrop):
        return "planar"
    if isinstance(stage, Resize | ResizeShorterSide):
        return "unsure" if by_v1 or windowed else "kept"
    if isinstance(stage, ColorJitter):
        return "kept" if stage.hue is None else "unsure" if by_v1 else "planar"
    if isinstance(stage, Fixed):
        if stage.operation[0] == "pad" and any(map(bool, stage.operation[1:5])):
            return "planar"
        return "kept" if stage.operation[0] in _KEEPING else "unsure"
    if isinstance(stage, RandomRotation) and stage.degrees[0] % 90 == 0:
        return "planar" if by_v1 else "unsure"
    return "planar" if isinstance(stage, _PLANAR) else "unsure"


def may_transpose(stage: Stage) -> bool:
    """Whether v2 may turn the tensor by 90 degrees without arithmetic, or a policy not at all.

    Such angles are too rare to count where any angle of a range is drawn.
    """
    for each in flat((stage,)):
        if isinstance(each, RandomRotation) and each.rounding in _OF_V2:
            low, high = each.degrees
            if low == high and low % 180 == 90 and each.centre is None:
                return True
        if isinstance(each, RandomPolicy) and each.warp_rounding in _OF_V2:
            steps = [step for policy in each.policies for step in policy if step.op == "rotate"]
            if any(level % 90 == 0 for step in steps for level in step.magnitude.levels):
                return True
    return False


def sees_order(stage: Stage) -> bool:
    """Whether a stage changes contrast, which depends on how a tensor lies in memory."""
    return any(
        (isinstance(each, ColorJitter) and each.contrast is not None)
        or isinstance(each, AugMix)
        or (
            isinstance(each, RandomPolicy)
            and any(step.op == "contrast" for policy in each.policies for step in policy)
        )
        for each in flat((stage,))
    )


def spreads(stage: Stage) -> bool:
    """Whether a stage makes grey, whose channels are one in memory."""
    return any(
        isinstance(each, Fixed) and each.operation[0] == "grayscale" for each in flat((stage,))
    )
