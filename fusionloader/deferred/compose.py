"""``Compose`` on a deferred image: the conversions at its end run with the recorded operations."""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from fusionloader.deferred.core import DeferredCore, deferred_core, image_of, info_of
from fusionloader.deferred.pillow import Argument, PillowImage
from fusionloader.deferred.source import Source
from fusionloader.plan.arguments import Context, NestedTooDeep, NotCompiled, Transform
from fusionloader.plan.patches import is_patched
from fusionloader.plan.stages import Convert
from fusionloader.plan.torchvision import conversions
from fusionloader.plan.transforms import stage_of

Function = Callable[..., Any]

# Attributes of conversions that decide on their results.
_DECIDING = ("mean", "std", "inplace", "dtype", "scale")
# Those that change what a call does, whatever they hold; is_patched() sees more when it is asked.
_CHANGING = ("_forward_hooks", "_forward_pre_hooks", "forward", "__call__")


def calling(original: Function) -> Function:
    """Returns ``Compose.__call__`` of v1 or ``Compose.forward`` of v2."""

    @functools.wraps(original)
    def call(self: PillowImage, *inputs: Argument, **named: Argument) -> Any:
        image = inputs[0] if len(inputs) == 1 and not named else None
        if not isinstance(image, Image.Image):
            return original(self, *inputs, **named)
        ending = _ending_of(self)
        if ending is None:
            return original(self, image)
        return ending.run(image)

    return call


class _Ending:
    """Where a list's last conversions begin, and what they are together."""

    def __init__(self, steps: Sequence[Transform]) -> None:
        self._steps = list(steps)
        first = len(self._steps)
        while first and conversions.is_conversion(self._steps[first - 1]):
            first -= 1
        self._dtype = torch.get_default_dtype()
        try:
            self._states = [(vars(step), _state(step)) for step in self._steps[first:]]
        except _Unknown:
            first, self._states = len(self._steps), []
        self._first = first
        self._last = self._steps[first:]
        self._tables: dict[str, tuple[Convert, type] | None] = {}
        # From here on all are recorded: what is a plain image there may as well be deferred.
        self._known = first
        while self._known and _is_known(self._steps[self._known - 1]):
            self._known -= 1

    def is_of(self, steps: Sequence[Transform]) -> bool:
        """Whether the steps are still those that this was made of."""
        if len(steps) != len(self._steps) or not all(map(operator.is_, steps, self._steps)):
            return False
        if self._dtype is not torch.get_default_dtype():
            return False
        for attributes, state in self._states:
            if any(attributes.get(name) for name in _CHANGING):
                return False
            for name, value in state:
                try:
                    if _plain(attributes.get(name)) != value:
                        return False
                except _Unknown:
                    return False
        return True

    def run(self, image: PillowImage) -> Any:
        for place, step in enumerate(self._steps[: self._first]):
            if place == self._known and self._last:
                image = _lifted(image)
            image = step(image)
        core = deferred_core(image) if self._last else None
        if core is not None:
            table = self._table(core.mode)
            if table is not None:
                made = _tensor(core, *table)
                if made is not None:
                    return made
        for step in self._last:
            image = step(image)
        return image

    def _table(self, mode: str) -> tuple[Convert, type] | None:
        if mode not in self._tables:
            self._tables[mode] = self._compiled(1 if mode == "L" else 3)
        return self._tables[mode]

    def _compiled(self, channels: int) -> tuple[Convert, type] | None:
        if any(is_patched(step) for step in self._last):
            return None
        try:
            table = conversions.table(self._last, channels)
            levels = np.zeros((16, 16, 3)[: 3 if channels == 3 else 2], np.uint8)
            return table, type(conversions.run(self._last, Image.fromarray(levels)))
        except NotCompiled:
            return None


_endings: weakref.WeakKeyDictionary[Any, _Ending] = weakref.WeakKeyDictionary()
_MOST_STEPS = 64


def _ending_of(compose: PillowImage) -> _Ending | None:
    """Returns the ending of a ``Compose`` as it is now; ``None`` where it is no plain list."""
    steps: Argument = getattr(compose, "transforms", None)
    if type(steps) not in (list, tuple) or len(steps) > _MOST_STEPS:
        return None
    try:
        ending = _endings.get(compose)
    except TypeError:  # a subclass without weak references or hash
        return None
    if ending is None or not ending.is_of(steps):
        ending = _endings[compose] = _Ending(steps)
    return ending


def _tensor(core: DeferredCore, convert: Convert, kind: type[torch.Tensor]) -> Any:
    try:
        made = core.tensor(convert)
    except ValueError:
        return None
    return made if kind is torch.Tensor else made.as_subclass(kind)


def _lifted(image: PillowImage) -> Any:
    """Returns a plain RGB image as a deferred one, of its pixels."""
    kind = type(image)
    if kind is not Image.Image or image.mode != "RGB" or min(image.size) < 1:
        return image
    if type(image._im) is DeferredCore or "transparency" in image.info:
        return image
    source = Source(b"", image.size, np.array(image))
    return image_of(DeferredCore(source, (), "RGB", image.size), info_of(image))


def _is_known(step: Transform) -> bool:
    try:
        return not is_patched(step) and bool(stage_of(step, Context(3, "pil")))
    except (NotCompiled, NestedTooDeep):
        return False


def _state(step: Transform) -> list[tuple[str, Any]]:
    return [(name, _plain(vars(step)[name])) for name in _DECIDING if name in vars(step)]


class _Unknown(Exception):
    """A value that may change without being seen to."""


def _plain(value: Argument) -> Any:
    """Returns a value that can be compared, and does not change with the one given."""
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, type)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return tuple((_plain(key), _plain(each)) for key, each in value.items())
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return value.tolist()
    raise _Unknown
