"""Compares a recorder with its transform: both are run on images without pixels."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from fusionloader.data.deferred.composed import recorders
from fusionloader.data.deferred.composed.recorders import Held, TransformRecorder, make_recorder
from fusionloader.data.deferred.core import DeferredCore, like, make_image
from fusionloader.data.deferred.counts import uncounted
from fusionloader.data.deferred.source import EncodedSource
from fusionloader.data.deferred.tensors.deferred_image import DeferredImage
from fusionloader.data.deferred.tensors.deferred_tensor import (
    DeferredTensor,
    deferred_tensor,
    find_view,
)
from fusionloader.data.deferred.tensors.level_tables import LEVELS
from fusionloader.data.deferred.tensors.tensor_view import TensorView
from fusionloader.system.processes import renewed_in_children
from fusionloader.transforms.executors.global_generators import preserved_generators
from fusionloader.transforms.plan.arguments import Transform
from fusionloader.transforms.plan.image_info import keeps_info

# Usual sizes, and some for which torchvision's RandomResizedCrop finds no window.
_SIZES = ((500, 375), (333, 640), (224, 224), (1000, 40), (30, 700))
_SEEDS = range(4)
_lock = renewed_in_children(threading.RLock())
_known: list[bool] = []  # whether draws are known, once that has been tried
_NO_PIXELS = np.empty((0, 0, 3), np.uint8)
# Installs patches, those for tensors if it is called with True. Module `patches` sets it.
patched: Callable[[bool], AbstractContextManager[Any]] = nullcontext


def tried_recorder(step: Transform, held: Held = "pil") -> TransformRecorder | None:
    """Returns the recorder of a transform if all trials agree, else ``None``.

    Trials draw from torch's generator and restore its state afterwards, so no other thread may draw
    at the same time: they need a process with a single thread.
    """
    with _lock:
        if not recorders.is_alone():
            return None
        recorder = make_recorder(step, held)
        if recorder is None or not (_draws_are_known() and _is_right(step, recorder, held)):
            return None
        return recorder


def _draws_are_known() -> bool:
    """Whether this release of torch, on this processor, draws as the recorders do.

    The last bit of a number may be another one, which hardly ever shows in the place of a crop.
    """
    from torchvision.transforms import ColorJitter

    step = ColorJitter(0.3, (0.5, 2.0), 0.7, 0.1)
    if not _known and (recorder := make_recorder(step)) is not None:  # not replaced by the program
        _known.append(_is_right(step, recorder, "pil"))
    return bool(_known and _known[0])


def _is_right(step: Transform, recorder: TransformRecorder, held: Held) -> bool:
    with patched(held == "tensor"), preserved_generators(), uncounted():
        kinds = (DeferredTensor, DeferredImage) if held == "tensor" else (None,)
        cases = itertools.product(kinds, _SIZES, _SEEDS)
        return all(_agree(step, recorder, *case) for case in cases)


def recorded_image(image: Any, core: DeferredCore) -> Any:
    """Returns the image of ``core``, which was recorded from that of ``image``."""
    if core is image._im:
        return image
    recorded = core.operations[len(image._im.operations) :]
    return like(image, core) if keeps_info(recorded, *image.size) else make_image(core)


def recorded_tensor(tensor: Any, core: DeferredCore) -> Any:
    """Returns the tensor of ``core``, which was recorded from that of ``tensor``."""
    view = find_view(tensor)
    assert view is not None
    return tensor if core is view.core else deferred_tensor(view.follow(core), type(tensor))


def _agree(
    step: Transform,
    recorder: TransformRecorder,
    kind: type[DeferredTensor] | None,
    size: tuple[int, int],
    seed: int,
) -> bool:
    generator = torch.default_generator
    others = _others()
    core = DeferredCore(EncodedSource(b"", size, _NO_PIXELS), (), "RGB", size)
    image: Any = make_image(core, {"note": 1})
    if kind is not None:
        image = deferred_tensor(TensorView.of_all(core, LEVELS, is_interleaved=True), kind)
    record = recorded_image if kind is None else recorded_tensor
    generator.manual_seed(seed)
    try:
        recorded, done = recorder.record(core)
    except ValueError:  # for arguments that torchvision may take
        return False
    if not done:
        return True
    made: Any = record(image, recorded)
    state = generator.get_state()
    generator.manual_seed(seed)
    try:
        expected: Any = step(image)
    except Exception:
        return False
    return (
        _about(made) == _about(expected)
        and (made is image) == (expected is image)
        and torch.equal(generator.get_state(), state)
        and others == _others()
    )


def _others() -> tuple[object, ...]:
    """Returns the states of Python's and numpy's global generators."""
    state: Any = np.random.get_state()
    return random.getstate(), state[1].tobytes(), state[2:]


def _about(image: Any) -> tuple[object, ...] | None:
    view = find_view(image)
    if view is not None:
        shown = view.core.operations, view.core.size, view.offset
        return *shown, view.memory.is_interleaved, type(image)
    core: Any = getattr(image, "_im", None)
    if type(core) is not DeferredCore:
        return None
    return core.operations, core.mode, core.size, image.mode, image.size, image.info, type(image)
