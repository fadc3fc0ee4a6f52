"""``Compose`` on a deferred image: its steps are analyzed once, and run."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image
from torch.nn.modules import module

from fusionloader.data.deferred import activity
from fusionloader.data.deferred.composed.recorders import Held
from fusionloader.data.deferred.composed.steps import NAME, RecordedSteps, RecordedTensorSteps
from fusionloader.data.deferred.guard import guarded
from fusionloader.data.deferred.pillow import Argument, PillowImage
from fusionloader.data.deferred.tensors.deferred_tensor import is_deferred
from fusionloader.transforms.plan.arguments import Transform
from fusionloader.transforms.plan.compiled_transform import Tail, called

Function = Callable[..., Any]


def calling(original: Function) -> Function:
    """Returns the replacement of v1's ``Compose.__call__`` or v2's ``Compose.forward``."""

    @functools.wraps(original)
    def call(self: PillowImage, *inputs: Argument, **named: Argument) -> Any:
        image = inputs[0] if len(inputs) == 1 and not named else None
        is_tensor = is_deferred(image)
        if not (is_tensor or isinstance(image, Image.Image)) or not activity.is_active():
            return original(self, *inputs, **named)
        steps = _steps_of(self, "tensor" if is_tensor else "pil")
        return original(self, image) if steps is None else steps.run(self.transforms, image)

    return call


def run_listed(tail: Tail, image: PillowImage) -> Any:
    """Applies the transforms at the end of a plan to an image, as a ``Compose`` would."""
    steps = _steps_of(tail, "pil") if activity.is_active() else None
    return tail(image) if steps is None else steps.run(tail.transforms, image, called)


_MOST_STEPS = 64
# A list that is made for a single image is not analyzed.
_LEAST_CALLS = 3
# Analysis takes milliseconds, so steps that change with every image are soon left alone.
_LEAST_CHANGES, _CALLS_PER_CHANGE = 8, 1000


class _Known:
    """The analyzed steps of one ``Compose``."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self._steps: RecordedSteps | None = None
        self._calls = self._changes = 0

    def steps(self, listed: Sequence[Transform]) -> RecordedSteps | None:
        """Returns the current steps; ``None`` where they change too often."""
        self._calls += 1
        if self._calls < _LEAST_CALLS:
            return None
        if self._steps is None or not self._steps.are(listed):
            if self._changes > _LEAST_CHANGES + self._calls // _CALLS_PER_CHANGE:
                return None
            self._changes += 1
            self._steps = (
                RecordedSteps(listed) if self._held == "pil" else RecordedTensorSteps(listed)
            )
        return self._steps


_known: weakref.WeakKeyDictionary[Any, dict[Held, _Known]] = weakref.WeakKeyDictionary()


def _find_steps(compose: PillowImage, held: Held) -> RecordedSteps | None:
    """Returns the current steps of a ``Compose``.

    ``None`` if they are not in a plain list, or if hooks of all modules have to see each call.
    """
    listed: Argument = getattr(compose, "__dict__", {}).get("transforms")
    if type(listed) not in (list, tuple) or len(listed) > _MOST_STEPS:
        return None
    if module._global_forward_hooks or module._global_forward_pre_hooks:
        return None
    try:
        known = _known.get(compose)
        if known is None:
            known = _known[compose] = {}
    except TypeError:  # a subclass without weak references or hash
        return None
    if held not in known:
        known[held] = _Known(held)
    return known[held].steps(listed)


_steps_of = guarded(_find_steps, lambda compose, held: None, NAME)
