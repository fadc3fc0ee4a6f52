"""torchvision's RandomErasing, which comes between or after the conversions, to a stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fusionloader.plan.arguments import NotCompiled, numbers
from fusionloader.plan.conversions import run
from fusionloader.plan.stages import RandomErasing


def is_erasing(step: Any) -> bool:
    """Whether a transform is torchvision's RandomErasing."""
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    return type(step) in (v1.RandomErasing, v2.RandomErasing)


def random_erasing(
    step: Any, before: torch.dtype, after: Sequence[Any], channels: int
) -> RandomErasing:
    """Returns the stage.

    Args:
        step: the transform.
        before: element type of the tensors it gets.
        after: the conversions that follow it.
        channels: of the image.
    """
    scale, ratio = numbers(step.scale, "scale"), numbers(step.ratio, "ratio")
    if not (0 <= scale[0] <= scale[1] <= 1 and 0 < ratio[0] <= ratio[1]):
        raise NotCompiled("its scale or ratio is not an increasing pair in range")
    value = step.value
    if value is None or value == "random":
        _require_unchanged(before, after, channels)
        return RandomErasing(float(step.p), scale, ratio, b"")
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if len(values) not in (1, channels):
        raise NotCompiled(f"value={value!r}")
    constant = torch.tensor(values, dtype=torch.float64).to(before)
    image = constant.reshape(-1, 1, 1).expand(channels, 2, 2).contiguous()
    made = run(after, image)
    if tuple(made.shape) != (channels, 2, 2):
        raise NotCompiled("the conversions after it change the shape")
    pixel = made.as_subclass(torch.Tensor)[:, 0, 0].contiguous()
    return RandomErasing(float(step.p), scale, ratio, pixel.view(torch.uint8).numpy().tobytes())


def _require_unchanged(before: torch.dtype, after: Sequence[Any], channels: int) -> None:
    """Noise is drawn for the result, so nothing may change it afterwards."""
    if before is not torch.float32:
        raise NotCompiled(f"noise of {before}")
    noise = torch.linspace(-3, 3, channels * 16).reshape(channels, 4, 4)
    made = run(after, noise.clone())
    if made.dtype is not before or not torch.equal(made.as_subclass(torch.Tensor), noise):
        raise NotCompiled("its noise is converted further")
