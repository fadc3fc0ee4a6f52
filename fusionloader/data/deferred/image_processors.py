"""Image processors of transformers on deferred images, with torch's arithmetic for uint8 tensors.

transformers' own code runs. In place of the uint8 tensors of Pillow images it gets ``ImageStack``
objects, which record what it does.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers.image_processing_backends import TorchvisionBackend

from fusionloader.data.deferred.core import deferred_core
from fusionloader.data.deferred.counts import counts
from fusionloader.data.deferred.guard import PLAIN, call_library, guarded
from fusionloader.data.deferred.image_stacks import ImageStack, finished, image_stack
from fusionloader.data.deferred.pillow import Argument
from fusionloader.data.deferred.processor_programs import ProcessorCall
from fusionloader.data.deferred.unparsed import is_transparent

# A TorchvisionBackend: transformers' types are not checked.
Processor = Any
Function = Callable[..., Any]

_FOLDER = f"{Path(inspect.getfile(TorchvisionBackend)).parent}{os.sep}"


class _Running(threading.local):
    processor = False


_running = _Running()


def preprocessing(original: Function) -> Function:
    """Returns an attempt at ``BaseImageProcessor.preprocess``."""

    def attempt(self: Processor, images: Any, *arguments: Any, **options: Any) -> Any:
        first = images
        while isinstance(first, (list, tuple)) and first:
            first = first[0]
        if _running.processor or not isinstance(first, Image.Image):
            return PLAIN
        if options.get("return_tensors") is None and not _gives_contiguous():
            return PLAIN  # the strides of the results are not those of an ImageStack
        call = ProcessorCall.of(self, images, arguments, options)
        made = PLAIN if call is None else call.replay()
        counts().processed["run" if made is PLAIN else "replayed"] += 1
        if made is not PLAIN:
            return made
        if not has_steps_of_transformers(self):
            return PLAIN

        def run(images: Any) -> Any:
            return _recording(lambda: call_library(original, self, images, *arguments, **options))

        return _finished(run(images) if call is None else call.record(run))

    return guarded(attempt, original)


@functools.cache
def _gives_contiguous() -> bool:
    """Whether processors work on contiguous tensors.

    In earlier releases the channels of a pixel lie side by side, also in results that are lists.
    """
    processor = TorchvisionBackend.__new__(TorchvisionBackend)
    tensor = TorchvisionBackend.process_image(processor, Image.new("RGB", (8, 8)))
    return bool(tensor.is_contiguous())


def _recording(run: Function) -> Any:
    """Calls ``run`` with tensors of images that record.

    No context manager: an exception may come between its ``__enter__`` and the block.
    """
    before = _running.processor
    try:
        _running.processor = True
        return run()
    finally:
        _running.processor = before


def recorded(processor: Processor, image: Image.Image) -> Any:
    """Returns what a processor makes of a deferred image, with an ``ImageStack`` for its tensor."""
    return _recording(functools.partial(processor.preprocess, image))


def process_image(
    self: Processor,
    image: Argument,
    do_convert_rgb: Argument = None,
    input_data_format: Argument = None,
    device: Argument = None,
    **options: Argument,
) -> Any:
    """Replaces ``TorchvisionBackend.process_image`` within ``preprocess``, for Pillow images."""
    if not _running.processor or device not in (None, "cpu", torch.device("cpu")):
        return PLAIN
    core = deferred_core(image)
    if core is None or is_transparent(image) or not (core.mode == "RGB" or do_convert_rgb):
        return PLAIN
    return image_stack(core.as_mode("RGB"))


def has_steps_of_transformers(processor: Processor) -> bool:
    """Whether no code of the program gets the tensors, as far as classes and objects tell."""
    kind: Any = type(processor)
    return (
        issubclass(kind, TorchvisionBackend)
        and _is_of_transformers(kind)
        and not any(map(callable, vars(processor).values()))
    )


def _is_of_transformers(kind: Any) -> bool:
    if kind.__module__.partition(".")[0] == "transformers":
        steps = getattr(getattr(kind, "_preprocess", None), "__code__", None)  # may be replaced
        return steps is not None and steps.co_filename.startswith(_FOLDER)
    own = [value for name, value in vars(kind).items() if name[:2] != "__"]
    if any(callable(value) or hasattr(value, "__get__") for value in own):
        return False
    return all(map(_is_of_transformers, kind.__bases__))


def _finished(made: Any) -> Any:
    """Returns what a processor made, with pixels, in the containers that it made."""
    if isinstance(made, ImageStack):
        return finished(made)
    if isinstance(made, MutableMapping):
        parts = list(made.items())
    elif type(made) in (list, tuple):
        parts = list(enumerate(made))
    else:
        return made
    found = {key: _finished(part) for key, part in parts}
    changed = {key: found[key] for key, part in parts if found[key] is not part}
    if changed and type(made) is tuple:
        return tuple(found.values())
    for key, part in changed.items():
        made[key] = part
    return made
