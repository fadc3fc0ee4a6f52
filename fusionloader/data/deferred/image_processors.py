"""Image processors of transformers on deferred images, with torch's arithmetic for uint8 tensors.

What a ``TorchvisionBackend`` makes of Pillow images is recorded: torch's resize, the crop in the
middle, and as a table what it makes of the 256 levels. A processor with steps of its own is left to
transformers. Each configuration is first compared with transformers, on images of several sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.image_processing_backends import TorchvisionBackend
from transformers.image_processing_base import BatchFeature
from transformers.image_transforms import get_size_with_aspect_ratio
from transformers.image_utils import get_image_size_for_max_height_width

from fusionloader.data.deferred.core import BLACK, DeferredCore, deferred_core, wrap_pixels
from fusionloader.data.deferred.counts import uncounted
from fusionloader.data.deferred.guard import PLAIN
from fusionloader.transforms.plan.stages import Convert, ElementType

# A TorchvisionBackend, a SizeDict, and a method of the former: transformers' types are not checked.
Processor = Any
Size = Any
Method = Callable[..., Any]
Options = Mapping[str, Any]

_STEPS = {
    *("_preprocess", "_prepare_image_like_inputs", "_prepare_images_structure", "fetch_images"),
    *("process_image", "resize", "center_crop", "rescale", "normalize", "rescale_and_normalize"),
}
_SIZES = ("size", "crop_size")
_LEVELS = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std")
_NEEDED = {*_SIZES, *_LEVELS, "do_resize", "resample", "do_center_crop", "return_tensors"}
# Without effect on images of Pillow in RGB, and on images one by one.
_IDLE = {"do_convert_rgb", "disable_grouping", "input_data_format", "data_format"}
_FILTERS = {Image.Resampling.BILINEAR: "torch_bilinear", Image.Resampling.BICUBIC: "torch_bicubic"}
_ELEMENTS: dict[torch.dtype, ElementType] = {torch.uint8: "uint8", torch.float32: "float32"}
_TRIED = ((37, 53), (300, 220), (64, 64))  # heights and widths
_MOST_RECIPES = 256


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a configuration does to an image; a size of ``None`` leaves its step out."""

    resize: Size
    filter: str
    crop: Size
    convert: Convert

    def tensor(self, core: DeferredCore) -> torch.Tensor:
        """Returns what a processor makes of an image, channels x height x width."""
        if self.resize is not None:
            height, width = _resized(self.resize, *core.size)
            if (width, height) != core.size:
                core = core.then(("resize", width, height, self.filter), (width, height))
        if self.crop is not None and (size := (self.crop.width, self.crop.height)) != core.size:
            begins = map(_begin, core.size, size)
            core = core.then(("crop", *begins, *size, BLACK), size)
        return core.tensor(self.convert)


_recipes: dict[object, Recipe | None] = {}


def processing(original: Method) -> Method:
    """Returns an attempt at ``BaseImageProcessor._preprocess_image_like_inputs``."""

    def attempt(self: Processor, images: Any, *arguments: Any, **options: Any) -> Any:
        listed = images if isinstance(images, (list, tuple)) else [images]
        cores = [core for core in map(deferred_core, listed) if core and core.mode == "RGB"]
        if not cores or len(cores) < len(listed) or arguments:
            return PLAIN
        recipe = _recipe(self, options, original)
        return PLAIN if recipe is None else _made(recipe, cores, options["return_tensors"])

    return attempt


def _made(recipe: Recipe, cores: list[DeferredCore], kind: str | None) -> BatchFeature:
    made: Any = [recipe.tensor(core) for core in cores]
    if kind is not None and len(made) == 1:
        made = made[0].unsqueeze(0)  # without the copy that a stack would be
    return BatchFeature({"pixel_values": made}, tensor_type=kind)


def _recipe(processor: Processor, options: Options, original: Method) -> Recipe | None:
    """Returns what a processor does; ``None`` if that is not known."""
    if not _STEPS.isdisjoint(vars(processor)):  # replaced in this object
        return None
    key = (type(processor), *((name, _hashable(options[name])) for name in sorted(options)))
    if key not in _recipes:
        if len(_recipes) >= _MOST_RECIPES:
            _recipes.clear()
        recipe = _expected(processor, options)
        holds = recipe is not None and _holds(recipe, processor, options, original)
        _recipes[key] = recipe if holds else None
    return _recipes[key]


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return astuple(value) if hasattr(value, "shortest_edge") else value


def _expected(processor: Processor, options: Options) -> Recipe | None:
    """Returns what a processor should do; ``None`` if it has steps or options that are unknown."""
    if not isinstance(processor, TorchvisionBackend):
        return None
    if any(getattr(type(processor), n) is not getattr(TorchvisionBackend, n) for n in _STEPS):
        return None
    if not options.keys() >= _NEEDED or options["return_tensors"] not in (None, "pt"):
        return None
    if any(options[name] for name in options.keys() - _NEEDED - _IDLE):
        return None
    filter = _FILTERS.get(options["resample"]) if options["do_resize"] else ""
    levels = torch.arange(256, dtype=torch.uint8).repeat(3).view(1, 3, 256, 1)
    made = processor.rescale_and_normalize(levels, **{name: options[name] for name in _LEVELS})
    if filter is None or made.dtype not in _ELEMENTS:
        return None
    return Recipe(
        options["size"] if options["do_resize"] else None,
        filter,
        options["crop_size"] if options["do_center_crop"] else None,
        Convert(_ELEMENTS[made.dtype], made.contiguous().numpy().tobytes()),
    )


def _holds(recipe: Recipe, processor: Processor, options: Options, original: Method) -> bool:
    """Whether a recipe gives the tensors of transformers."""
    for height, width in _TRIED:
        pixels = np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)
        (expected,) = original(processor, Image.fromarray(pixels), **options)["pixel_values"]
        with uncounted():
            core = deferred_core(wrap_pixels(pixels, {}))
            assert core is not None
            if not torch.equal(recipe.tensor(core), expected):
                return False
    return True


def _resized(size: Size, width: int, height: int) -> tuple[int, int]:
    """Returns height and width as ``TorchvisionBackend.resize`` computes them."""
    if size.shortest_edge and size.longest_edge:
        edges = size.shortest_edge, size.longest_edge
        return get_size_with_aspect_ratio((height, width), *edges)
    if size.shortest_edge:
        short: int = size.shortest_edge
        long = int(short * max(width, height) / min(width, height))
        return (long, short) if width <= height else (short, long)
    if size.max_height and size.max_width:
        most = size.max_height, size.max_width
        return get_image_size_for_max_height_width((height, width), *most)
    return size.height, size.width


def _begin(before: int, after: int) -> int:
    """Returns where the crop in the middle begins; negative where the image is padded."""
    return -((after - before) // 2) if after > before else int((before - after) / 2.0)
