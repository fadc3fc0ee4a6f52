"""Image processors of transformers on deferred images, with torch's arithmetic for uint8 tensors.

What a ``TorchvisionBackend`` makes of Pillow images is recorded: torch's resize, the crop in the
middle, and as a table what it makes of the 256 levels. A processor with steps of its own is left to
transformers. Each configuration is first compared with transformers, on images of several sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.image_processing_backends import TorchvisionBackend
from transformers.image_processing_base import BatchFeature
from transformers.image_transforms import get_size_with_aspect_ratio
from transformers.image_utils import get_image_size_for_max_height_width

from fusionloader.data.deferred import methods
from fusionloader.data.deferred.core import DeferredCore, deferred_core, wrap_pixels
from fusionloader.data.deferred.counts import uncounted
from fusionloader.data.deferred.guard import PLAIN
from fusionloader.transforms.plan.stages import Convert, ElementType

# A TorchvisionBackend, a SizeDict, and a method of the former: transformers' types are not checked.
Processor = Any
Size = Any
Method = Callable[..., Any]
Options = Mapping[str, Any]

_STEPS = {
    name: getattr(TorchvisionBackend, name)
    for name in (
        *("_preprocess", "_prepare_image_like_inputs", "_prepare_images_structure"),
        *("fetch_images", "process_image", "convert_to_rgb", "resize", "center_crop", "pad"),
        *("rescale", "normalize", "rescale_and_normalize", "_fuse_mean_std_and_rescale_factor"),
    )
}
_SIZES = {"size", "crop_size"}
_LEVELS = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std")
_NEEDED = {*_SIZES, *_LEVELS, "do_resize", "resample", "do_center_crop", "return_tensors"}
# Without effect on images of Pillow in RGB, and on images one by one.
_IDLE = {"do_convert_rgb", "disable_grouping", "input_data_format", "data_format"}
_FILTERS = {Image.Resampling.BILINEAR: "torch_bilinear", Image.Resampling.BICUBIC: "torch_bicubic"}
_ELEMENTS: dict[torch.dtype, ElementType] = {torch.uint8: "uint8", torch.float32: "float32"}
_TRIED = ((37, 53), (300, 220), (64, 64))  # heights and widths
_MOST_RECIPES = 64  # of further configurations transformers makes the tensors


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a configuration does, but for its sizes: the filter of the resize, and the levels."""

    filter: str
    convert: Convert

    def tensor(self, core: DeferredCore, options: Options) -> torch.Tensor | None:
        """Returns what a processor makes of an image, channels x height x width.

        ``None`` if transformers has to: it may have an error for these sizes.

        Raises:
            ValueError: the native executor refuses an operation.
        """
        if options["do_resize"]:
            size = _resized(options["size"], *core.size)
            if size is None or not _are_sides(size):
                return None
            if size != core.size:
                core = core.then(("resize", *size, self.filter), size)
        if options["do_center_crop"]:
            size = options["crop_size"].width, options["crop_size"].height
            if not _are_sides(size):
                return None
            left, top = map(_begin, core.size, size)
            cropped = methods.crop(core, (left, top, left + size[0], top + size[1]))
            if cropped is None:
                return None
            core = cropped
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
        if recipe is None:
            return PLAIN
        try:
            made = [recipe.tensor(core, options) for core in cores]
        except ValueError:
            return PLAIN
        tensors = [tensor for tensor in made if tensor is not None]
        return _batch(tensors, options) if len(tensors) == len(cores) else PLAIN

    return attempt


def _batch(tensors: list[torch.Tensor], options: Options) -> BatchFeature:
    kind, pixels = options["return_tensors"], tensors
    if kind is not None and len(tensors) == 1:
        pixels = tensors[0].unsqueeze_(0)  # type: ignore[assignment]  # no copy, as a stack is
    return BatchFeature({"pixel_values": pixels}, tensor_type=kind)


def _recipe(processor: Processor, options: Options, original: Method) -> Recipe | None:
    """Returns what a processor does; ``None`` if that is not known."""
    if not _has_known_steps(processor) or not _has_known_options(options):
        return None
    try:
        key = _key(processor, options)
        if key in _recipes:
            return _recipes[key]
    except TypeError:  # an option that cannot be hashed
        return None
    recipe = None
    if len(_recipes) < _MOST_RECIPES:
        recipe = _expected(processor, options)
        if recipe is not None and not _holds(recipe, processor, options, original):
            recipe = None
        _recipes[key] = recipe
    return recipe


def _has_known_steps(processor: Processor) -> bool:
    """Whether all steps are those of transformers, also if the program may have replaced some."""
    kind = type(processor)
    return (
        isinstance(processor, TorchvisionBackend)
        and _STEPS.keys().isdisjoint(vars(processor))
        and all(getattr(kind, name) is step for name, step in _STEPS.items())
    )


def _has_known_options(options: Options) -> bool:
    return (
        options.keys() >= _NEEDED
        and options["return_tensors"] in (None, "pt")
        and not any(options[name] for name in options.keys() - _NEEDED - _IDLE)
    )


def _key(processor: Processor, options: Options) -> object:
    """Returns all that a recipe depends on; of sizes, which of their parts are given."""
    names = sorted(_NEEDED - _SIZES)
    values = [(name, *_typed(options[name])) for name in names]
    sizes = [tuple(name for name, _ in options[name] or ()) for name in sorted(_SIZES)]
    return type(processor), torch.get_default_dtype(), *values, *sizes


def _typed(value: Any) -> tuple[object, ...]:
    """Returns a value with its type: numbers of different types are equal, but not their effect."""
    values = value if isinstance(value, (list, tuple)) else (value,)
    return type(value), *((type(each), each) for each in values)


def _expected(processor: Processor, options: Options) -> Recipe | None:
    """Returns what a processor should do; ``None`` if native code does not do it."""
    filter = _FILTERS.get(options["resample"]) if options["do_resize"] else ""
    if filter is None:
        return None
    levels = torch.arange(256, dtype=torch.uint8, device="cpu").repeat(3).view(1, 3, 256, 1)
    try:
        made = processor.rescale_and_normalize(levels, **{name: options[name] for name in _LEVELS})
    except (RuntimeError, TypeError, ValueError):  # transformers has it for the image, too
        return None
    if made.dtype not in _ELEMENTS:
        return None
    return Recipe(filter, Convert(_ELEMENTS[made.dtype], made.contiguous().numpy().tobytes()))


def _holds(recipe: Recipe, processor: Processor, options: Options, original: Method) -> bool:
    """Whether a recipe gives the tensors of transformers."""
    for height, width in _TRIED:
        pixels = np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)
        try:
            (expected,) = original(processor, Image.fromarray(pixels), **options)["pixel_values"]
        except (RuntimeError, TypeError, ValueError):
            return False
        with uncounted():
            core = deferred_core(wrap_pixels(pixels, {}))
            assert core is not None
            found = recipe.tensor(core, options)
        if found is None or found.dtype != expected.dtype or not torch.equal(found, expected):
            return False
    return True


def _resized(size: Size, width: int, height: int) -> tuple[int, int] | None:
    """Returns width and height as ``TorchvisionBackend.resize`` computes them."""
    if size.shortest_edge and size.longest_edge:
        edges = size.shortest_edge, size.longest_edge
        return get_size_with_aspect_ratio((height, width), *edges)[::-1]
    if size.shortest_edge:
        short: int = size.shortest_edge
        long = int(short * max(width, height) / min(width, height))
        return (short, long) if width <= height else (long, short)
    if size.max_height and size.max_width:
        most = size.max_height, size.max_width
        return get_image_size_for_max_height_width((height, width), *most)[::-1]
    return (size.width, size.height) if size.height and size.width else None


def _are_sides(size: tuple[Any, Any]) -> bool:
    return all(type(side) is int and 1 <= side <= methods.MOST_SIDE for side in size)


def _begin(before: int, after: int) -> int:
    """Returns where the crop in the middle begins; negative where the image is padded."""
    return -((after - before) // 2) if after > before else int((before - after) / 2.0)
