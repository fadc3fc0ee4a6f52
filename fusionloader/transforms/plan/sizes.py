"""The size of a plan's results, if all have the same."""

from __future__ import annotations

from collections.abc import Sequence

from fusionloader.transforms.plan.stages import (
    CenterCrop,
    CropOrPad,
    Fixed,
    RandomApply,
    RandomCrop,
    RandomOrder,
    RandomResizedCrop,
    RandomRotation,
    Resize,
    ResizeKeepRatio,
    ResizeShorterSide,
    Stage,
    TrimBorder,
    get_branches,
)

Size = tuple[int | None, int | None]
_UNKNOWN: Size = (None, None)


def result_size(stages: Sequence[Stage], height: int | None, width: int | None) -> Size:
    """Returns height and width after the stages; ``None`` if they may differ between images."""
    size: Size = (height, width)
    for stage in stages:
        size = _after(stage, size)
    return size


def _after(stage: Stage, size: Size) -> Size:
    if isinstance(stage, (RandomResizedCrop, Resize, CenterCrop, CropOrPad, RandomCrop)):
        return stage.height, stage.width
    if isinstance(stage, ResizeShorterSide):
        return _shorter_side(stage, *size)
    if isinstance(stage, ResizeKeepRatio) or (isinstance(stage, RandomRotation) and stage.expand):
        return _UNKNOWN
    if isinstance(stage, TrimBorder):
        return _trimmed(stage, *size)
    if isinstance(stage, Fixed) and stage.operation[0] == "pad":
        return _padded(stage, *size)
    branches = get_branches(stage)
    if not branches:
        return size
    results = [result_size(branch, *size) for branch in branches]
    if isinstance(stage, (RandomApply, RandomOrder)):
        results.append(size)  # in another order a stage would meet another size
    return results[0] if all(result == results[0] for result in results) else _UNKNOWN


def _shorter_side(stage: ResizeShorterSide, height: int | None, width: int | None) -> Size:
    if height is None or width is None or (stage.max_size and height != width):
        return _UNKNOWN
    longer = int(stage.size * max(height, width) / min(height, width))
    return (stage.size, longer) if height <= width else (longer, stage.size)


def _padded(stage: Fixed, height: int | None, width: int | None) -> Size:
    if height is None or width is None:
        return _UNKNOWN
    _, left, top, right, bottom, *_ = stage.operation
    return height + top + bottom, width + left + right


def _trimmed(stage: TrimBorder, height: int | None, width: int | None) -> Size:
    if height is None or width is None:
        return _UNKNOWN
    return height - 2 * stage.border, width - 2 * stage.border
