"""Image processors of transformers as plans."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fusionloader.data.deferred.core import DeferredCore, wrap_pixels
from fusionloader.data.deferred.counts import uncounted
from fusionloader.data.deferred.scope import deferring
from fusionloader.transforms.executors.compiled_plan import CompiledPlan
from fusionloader.transforms.plan.arguments import Transform
from fusionloader.transforms.plan.compiled_transform import CompiledTransform, Note
from fusionloader.transforms.plan.sizes import result_size
from fusionloader.transforms.plan.stages import (
    CenterCrop,
    Convert,
    Decode,
    Operation,
    Plan,
    Resize,
    ResizeShorterSide,
    Stage,
)

# Widths and heights, none of which is likely to be that of a result.
_TRIED = ((641, 33), (53, 37), (31, 650), (220, 301), (1003, 1502), (501, 376))


def is_image_processor(transform: Transform) -> bool:
    """Whether this is an image processor of transformers' torchvision backend."""
    backends = sys.modules.get("transformers.image_processing_backends")
    return backends is not None and isinstance(transform, backends.TorchvisionBackend)


def compile_image_processor(processor: Any, decode: Decode) -> CompiledTransform:
    """Compiles the ``pixel_values`` of an image processor.

    Its own code is run on images without pixels, of several sizes; the plan has the stages that
    give the operations that were recorded.

    Raises:
        ValueError: it does more than resize, crop and convert each image.
    """
    with deferring(), uncounted():
        tried = [] if _limits_long_images(processor) else [_record(processor, s) for s in _TRIED]
    results = [made for made in tried if made is not None]
    converts = {convert for _, convert in results}
    if len(results) == len(_TRIED) and len(converts) == 1:
        cores = [core for core, _ in results]
        stages = list(_stages([core.operations for core in cores]))
        height, width = result_size(stages, None, None)
        name = type(processor).__name__
        plan = Plan(tuple(stages), converts.pop(), height, width, decode)
        compiled = CompiledTransform(plan, None, (Note(name, ""),))
        if all(_gives(CompiledPlan(compiled), core) for core in cores):
            return compiled
    raise ValueError(
        "a Preprocessor has workers that run no Python code, and of image processors it takes "
        "those that only resize, crop, rescale and normalize. "
        f"{type(processor).__name__} with these settings does more: call it in a dataset"
    )


def _limits_long_images(processor: Any) -> bool:
    """Whether the images that were tried may not be long enough to be resized as all others are."""
    size = getattr(processor, "size", None)
    edges = getattr(size, "shortest_edge", None), getattr(size, "longest_edge", None)
    return None not in edges


def _record(processor: Any, size: tuple[int, int]) -> tuple[DeferredCore, Convert] | None:
    """Returns the operations on an image, and the conversion; ``None`` if there is more to it."""
    from fusionloader.data.deferred.image_processors import has_steps_of_transformers, recorded
    from fusionloader.data.deferred.image_stacks import recorded_image

    if not has_steps_of_transformers(processor):
        return None
    made = recorded(processor, wrap_pixels(np.zeros((*size[::-1], 3), np.uint8), {}))
    if made.keys() != {"pixel_values"} or len(made["pixel_values"]) != 1:
        return None
    return recorded_image(made["pixel_values"][0])


def _stages(tried: Sequence[Sequence[Operation]]) -> Iterator[Stage]:
    """Yields stages with which images get these operations, as far as there are such."""
    for operations in zip(*tried, strict=False):
        names = {operation[0] for operation in operations}
        if names == {"resize"}:
            width, height, filter = operations[0][1:]
            if len(set(operations)) == 1:
                yield Resize(height, width, filter)
            else:
                yield ResizeShorterSide(min(width, height), None, filter)
        elif names == {"crop"}:
            width, height = operations[0][3:5]
            yield CenterCrop(height, width, truncated=True)


def _gives(compiled: CompiledPlan, core: DeferredCore) -> bool:
    drawn = compiled.draw(*core.source.size)
    return tuple(drawn) == core.operations
