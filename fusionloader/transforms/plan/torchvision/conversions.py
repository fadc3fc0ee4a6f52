"""Conversion of 8-bit levels to elements of a batch, as a table of the user's conversions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fusionloader.transforms.plan.arguments import NotCompiled, Transform
from fusionloader.transforms.plan.stages import Convert, ElementType, Fixed
from fusionloader.transforms.plan.timm.names import timm_name

ELEMENTS: dict[torch.dtype, ElementType] = {
    torch.uint8: "uint8",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}


MOST_FLOAT = 1e6
"""Floats that stages work on start within it, and torch may be called for larger ones."""


def is_conversion(step: Transform) -> bool:
    """Whether this is a known conversion, such as ``ToTensor``, ``ToDtype`` or ``Normalize``."""
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    return type(step) in (
        v1.ToTensor,
        v1.PILToTensor,
        v1.ConvertImageDtype,
        v1.Normalize,
        v2.ToTensor,
        v2.PILToTensor,
        v2.ToImage,
        v2.ToDtype,
        v2.ConvertImageDtype,
        v2.Normalize,
        v2.ToPureTensor,
        timm_name("transforms", "MaybeToTensor"),
        timm_name("transforms", "MaybePILToTensor"),
        timm_name("transforms", "ToTensor"),
    )


def held_after(conversions: Sequence[Transform], channels: int) -> str:
    """Returns what holds the image after the conversions, as ``Context.held``.

    Changed levels count as ``"other"``, also as uint8: no stage works on them.
    """
    result = _run_on_image(conversions, np.arange(256, dtype=np.uint8), channels)
    if not isinstance(result, torch.Tensor):
        return "pil"
    if keeps_levels(conversions, channels):
        return "tensor"
    return "floats" if result.dtype is torch.float32 else "other"


def keeps_levels(conversions: Sequence[Transform], channels: int) -> bool:
    """Whether the conversions leave every 8-bit level as it is."""
    try:
        made = table(conversions, channels)
    except NotCompiled:
        return False
    return made.element_type == "uint8" and made.table == bytes(range(256)) * channels


def type_after(conversions: Sequence[Transform], channels: int) -> torch.dtype:
    """Returns the element type of the tensor that the conversions make."""
    result = _run_on_image(conversions, np.arange(256, dtype=np.uint8), channels)
    dtype: torch.dtype = result.dtype
    return dtype


def table(conversions: Sequence[Transform], channels: int) -> Convert:
    """Returns the table of the conversions, which are run on every level of every channel.

    They are run twice, with the levels in different places, to find those that depend on the place.

    Raises:
        NotCompiled: they raise, or do not map each pixel by itself to a known element type.
    """
    levels = np.arange(256, dtype=np.uint8)
    shuffled = levels[(levels.astype(np.int64) * 77 + 13) % 256]
    straight, other = (
        _as_table(_run_on_image(conversions, values, channels), channels)
        for values in (levels, shuffled)
    )
    order = torch.from_numpy(shuffled.astype(np.int64))
    same = torch.equal(straight[:, order].view(torch.uint8), other.view(torch.uint8))
    if not same:
        raise NotCompiled("the conversion is not the same for every pixel")
    return Convert(ELEMENTS[straight.dtype], straight.view(torch.uint8).numpy().tobytes())


def elements(conversions: Sequence[Transform], channels: int) -> torch.Tensor:
    """Returns the elements that levels become, channels x 256; x 0 without a table."""
    try:
        made = table(conversions, channels)
    except NotCompiled:
        return torch.empty(channels, 0)
    dtype = next(dtype for dtype, name in ELEMENTS.items() if name == made.element_type)
    return torch.frombuffer(bytearray(made.table), dtype=dtype).view(channels, 256)


def makes_plain_tensor(conversions: Sequence[Transform], channels: int) -> bool:
    """Whether the conversions make a tensor of no subclass, channel by channel in memory."""
    result = _run_on_image(conversions, np.arange(256, dtype=np.uint8), channels)
    return type(result) is torch.Tensor and result.is_contiguous()


def makes_image(conversions: Sequence[Transform], channels: int) -> bool:
    """Whether the conversions make an image of torchvision's type."""
    from torchvision import tv_tensors

    result = _run_on_image(conversions, np.arange(256, dtype=np.uint8), channels)
    return isinstance(result, tv_tensors.Image)


def makes_contiguous_tensor(conversions: Sequence[Transform], channels: int) -> bool:
    """Whether the conversions make a tensor that lies channel by channel in memory."""
    result: torch.Tensor = _run_on_image(conversions, np.arange(256, dtype=np.uint8), channels)
    return result.is_contiguous()


def stage_on_floats(step: Transform, channels: int) -> Fixed | None:
    """Returns the stage of a conversion of float32 tensors; ``None`` if it changes nothing.

    Raises:
        NotCompiled: it is none of a plan's.
    """
    from torchvision import tv_tensors

    values = torch.linspace(-3, 300, channels * 16, dtype=torch.float32).reshape(channels, 4, 4)
    if is_normalize(step):
        if tuple(run([step], values).shape) != tuple(values.shape):
            raise NotCompiled("it changes the number of channels")
        mean, deviation = (_three(each, channels) for each in (step.mean, step.std))
        if not all(1 / MOST_FLOAT <= abs(each) <= MOST_FLOAT for each in deviation):
            raise NotCompiled(f"std={step.std!r}")
        return Fixed(("normalize", mean, deviation))
    # The older transforms have made plain tensors of images, the newer ones have not.
    for held in (values, tv_tensors.Image(values)):
        made = run([step], held.clone())
        known = type(made) in (torch.Tensor, type(held)) and made.dtype is values.dtype
        if not known or not torch.equal(made.as_subclass(torch.Tensor), values):
            raise NotCompiled("it converts floats that stages have worked on")
    return None


def is_normalize(step: Transform) -> bool:
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    return type(step) in (v1.Normalize, v2.Normalize)


def _three(values: Any, channels: int) -> tuple[float, float, float]:
    made = torch.as_tensor(values, dtype=torch.float32).reshape(-1)
    red, green, blue = made.expand(channels).tolist() * (3 // channels)
    return red, green, blue


def run(conversions: Sequence[Transform], image: Any) -> Any:
    """Returns the image after the conversions.

    Raises:
        NotCompiled: one of them raises.
    """
    try:
        for conversion in conversions:
            image = conversion(image)
    except Exception as error:
        raise NotCompiled(f"it raises {type(error).__name__}: {error}") from None
    return image


def _run_on_image(
    conversions: Sequence[Transform], levels: npt.NDArray[np.uint8], channels: int
) -> Any:
    from PIL import Image

    pixels = levels.reshape(16, 16)
    return run(
        conversions, Image.fromarray(pixels if channels == 1 else np.stack([pixels] * 3, axis=2))
    )


def _as_table(image: Any, channels: int) -> torch.Tensor:
    if not isinstance(image, torch.Tensor) or tuple(image.shape) != (channels, 16, 16):
        raise NotCompiled(f"the conversion does not give a tensor of {channels} channel(s)")
    if image.dtype not in ELEMENTS:
        raise NotCompiled(f"{image.dtype} is not supported")
    return image.as_subclass(torch.Tensor).reshape(channels, 256).contiguous()
