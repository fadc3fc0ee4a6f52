"""Results of a plan: their shape, element type and conversion."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from fusionloader.transforms.plan.stages import Plan

ELEMENT_TYPES = {
    "uint8": torch.uint8,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def result_like(plan: Plan) -> torch.Tensor:
    """Returns an uninitialized tensor for a result of the plan, channels x height x width.

    Raises:
        ValueError: the plan's results are not tensors of one shape.
    """
    convert, height, width = plan.convert, plan.height, plan.width
    if convert is None or height is None or width is None:
        raise ValueError("the plan's results are not tensors of one shape")
    shape = (plan.result_channels, height, width)
    return torch.empty(shape, dtype=ELEMENT_TYPES[convert.element_type], device="cpu")


def result_array(result: bytes, size: tuple[int, int], plan: Plan) -> npt.NDArray[Any]:
    """Returns what an executor made of an image that became ``size``, read-only.

    uint8 of height x width x channels, or float32 of channels x height x width if the plan works on
    floats.
    """
    if plan.works_on_floats:
        return np.frombuffer(result, np.float32).reshape(plan.result_channels, *size)
    return np.frombuffer(result, np.uint8).reshape(*size, plan.result_channels)


def converted(image: Image.Image, plan: Plan) -> torch.Tensor:
    """Returns an image of any size after the plan's conversion, channels x height x width."""
    assert plan.convert is not None
    element_type = ELEMENT_TYPES[plan.convert.element_type]
    tables = torch.frombuffer(bytearray(plan.convert.table), dtype=element_type).view(-1, 256)
    pixels = np.asarray(image).astype(np.int64).reshape(image.height, image.width, -1)
    levels = torch.from_numpy(pixels)
    return torch.stack([table[levels[..., channel]] for channel, table in enumerate(tables)])
