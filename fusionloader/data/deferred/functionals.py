"""torchvision's functions that do not go through Pillow's methods, on deferred images."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image

from fusionloader.data.deferred.core import BLACK, DeferredCore, deferred_core, make_image
from fusionloader.data.deferred.counts import counts
from fusionloader.data.deferred.enhancing import padded
from fusionloader.data.deferred.guard import PLAIN, guarded
from fusionloader.data.deferred.pillow import Argument
from fusionloader.data.deferred.rows.memory import made_elsewhere
from fusionloader.data.deferred.tensors.deferred_tensor import tensor_of
from fusionloader.transforms.plan.arguments import NotCompiled
from fusionloader.transforms.plan.stages import Convert

Function = Callable[..., Any]
Recorder = Callable[..., "DeferredCore | None"]


def recording(recorder: Recorder) -> Function:
    """Returns an attempt to record a function of torchvision; its result has no ``info``."""

    def attempt(img: Argument, *arguments: Argument, **named: Argument) -> Any:
        # Some functions do nothing to an image of one channel, and do not load it.
        if not isinstance(img, Image.Image) or img.mode != "RGB":
            return PLAIN
        core = deferred_core(img)
        after = None if core is None else recorder(core, *arguments, **named)
        return PLAIN if after is None else make_image(after)

    return attempt


def adjust_hue(core: DeferredCore, hue_factor: float) -> DeferredCore | None:
    return core.then(("hue", float(hue_factor))) if -0.5 <= hue_factor <= 0.5 else None


def to_grayscale(core: DeferredCore, num_output_channels: int) -> DeferredCore | None:
    """Records ``to_grayscale`` to three channels; for one channel it calls ``convert("L")``."""
    return core.then(("grayscale",)) if num_output_channels == 3 else None


def gaussian_blur(
    core: DeferredCore, kernel_size: Argument, sigma: Argument = None
) -> DeferredCore | None:
    """Records ``gaussian_blur`` with given sigmas and a kernel that is not wider than the image."""
    kernel = [kernel_size] * 2 if type(kernel_size) is int else kernel_size
    sigmas = [sigma] * 2 if type(sigma) in (int, float) else sigma
    if not (_is_pair(kernel, int) and _is_pair(sigmas, int, float)):
        return None
    odd = all(type(size) is int and size > 0 and size % 2 == 1 for size in kernel)
    fits = all(size // 2 < side for size, side in zip(kernel, core.size, strict=True))
    if not (odd and fits and min(sigmas) > 0):
        return None
    return core.then(("blur", *kernel, *map(float, sigmas)))


def pad(
    core: DeferredCore, padding: Argument, fill: Argument = 0, padding_mode: str = "constant"
) -> DeferredCore | None:
    """Records ``pad`` with pixels of the image; with a color it calls ``ImageOps.expand``."""
    if padding_mode not in ("edge", "reflect", "symmetric"):
        return None
    if fill is not None and not isinstance(fill, (int, float, tuple, list)):
        return None
    return padded(core, padding, BLACK, padding_mode)  # type: ignore[no-any-return]


def _is_pair(values: Argument, *kinds: type) -> bool:
    pair = type(values) in (tuple, list) and len(values) == 2
    return pair and all(type(value) in kinds for value in values)


def converting(attempt: Function) -> Callable[[Function], Function]:
    """Returns a function that makes the replacement of a conversion to a tensor."""

    def replace(original: Function) -> Function:
        @functools.wraps(original)
        def plain(pic: Argument) -> Any:
            made = original(pic)
            made_elsewhere(made)
            return made

        return guarded(attempt, plain)

    return replace


def to_tensor(pic: Argument) -> Any:
    core = deferred_core(pic)
    if core is None or torch.get_default_dtype() is not torch.float32:
        return PLAIN
    try:
        return core.tensor(_fractions(core.mode))
    except (ValueError, NotCompiled):
        return PLAIN


def pil_to_tensor(pic: Argument) -> Any:
    core = deferred_core(pic)
    if core is None:
        return PLAIN
    tensor = tensor_of(core)
    if tensor is not PLAIN:
        return tensor
    width, height = core.size
    pixels = torch.from_numpy(core.pixels()).view(height, width, -1)
    counts().results["tensor"] += 1
    made_elsewhere(pixels)
    return pixels.permute((2, 0, 1))


@functools.cache
def _fractions(mode: str) -> Convert:
    """Returns the conversion of levels that ``to_tensor`` does."""
    from torchvision.transforms import ToTensor

    from fusionloader.transforms.plan.torchvision import conversions

    return conversions.table([ToTensor()], 1 if mode == "L" else 3)
