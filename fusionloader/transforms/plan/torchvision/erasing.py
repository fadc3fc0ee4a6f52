"""Converts torchvision's and timm's RandomErasing, which follow a conversion, to a stage."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from fusionloader.transforms.plan.arguments import NotCompiled, Transform, numbers
from fusionloader.transforms.plan.stages import RandomErasing
from fusionloader.transforms.plan.timm.names import timm_name
from fusionloader.transforms.plan.torchvision.conversions import run


def is_erasing(step: Transform) -> bool:
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    return type(step) in (v1.RandomErasing, v2.RandomErasing) or _is_timm_s(step)


def _is_timm_s(step: Transform) -> bool:
    return type(step) is timm_name("random_erasing", "RandomErasing")


def random_erasing(
    step: Transform, before: torch.dtype, after: Sequence[Transform], channels: int
) -> RandomErasing:
    """Returns the stage.

    Args:
        step: transform, for which ``is_erasing`` is true.
        before: element type of the tensors that it gets.
        after: conversions that follow it.
        channels: number of channels of the image.
    """
    if _is_timm_s(step):
        return _timm_erasing(step, before, after, channels)
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
    pixel = _converted(values, before, after, channels)
    return RandomErasing(float(step.p), scale, ratio, pixel)


def _timm_erasing(
    step: Transform, before: torch.dtype, after: Sequence[Transform], channels: int
) -> RandomErasing:
    scale = (float(step.min_area), float(step.max_area))
    low, high = numbers(step.log_aspect_ratio, "log_aspect_ratio")
    least, most = int(step.min_count), int(step.max_count)
    if not (0 <= scale[0] <= scale[1] and low <= high and 1 <= least <= most):
        raise NotCompiled("its areas, aspects or counts are not increasing pairs in range")
    values = b""
    if not (step.per_pixel or step.rand_color):
        values = _converted([0.0], before, after, channels)
    elif str(step.device) != "cpu":
        raise NotCompiled(f"it makes its noise on {step.device!r}")
    else:
        _require_unchanged(before, after, channels)
    ratio = (math.exp(low), math.exp(high))
    return RandomErasing(
        float(step.probability), scale, ratio, values, bool(step.per_pixel), least, most
    )


def _converted(
    values: Sequence[float], before: torch.dtype, after: Sequence[Transform], channels: int
) -> bytes:
    """Returns the bytes of a pixel with these values after the conversions."""
    constant = torch.tensor(list(map(float, values))).to(before)  # float32 first, as torchvision's
    image = constant.reshape(-1, 1, 1).expand(channels, 2, 2).contiguous()
    made = run(after, image)
    if tuple(made.shape) != (channels, 2, 2):
        raise NotCompiled("the conversions after it change the shape")
    # Not contiguous(), which leaves a single channel its stride.
    pixel = made.as_subclass(torch.Tensor)[:, 0, 0].clone(memory_format=torch.contiguous_format)
    elements: bytes = pixel.view(torch.uint8).numpy().tobytes()
    return elements


def _require_unchanged(before: torch.dtype, after: Sequence[Transform], channels: int) -> None:
    """Refuses noise that is converted: the native executor draws noise for the result."""
    if before is not torch.float32:
        raise NotCompiled(f"noise of {before}")
    noise = torch.linspace(-3, 3, channels * 16).reshape(channels, 4, 4)
    made = run(after, noise.clone())
    if made.dtype is not before or not torch.equal(made.as_subclass(torch.Tensor), noise):
        raise NotCompiled("its noise is converted further")
