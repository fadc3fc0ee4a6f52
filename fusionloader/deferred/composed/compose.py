"""``Compose`` on a deferred image: recorded where that is known, and ended by one conversion."""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from fusionloader.deferred import activity
from fusionloader.deferred.composed.recorders import Recorder
from fusionloader.deferred.composed.snapshots import ListSnapshot, Snapshot, Unknown
from fusionloader.deferred.composed.trials import recorded_image, tried_recorder
from fusionloader.deferred.core import DeferredCore, deferred_core, image_of, info_of
from fusionloader.deferred.pillow import Argument, PillowImage
from fusionloader.deferred.source import Source
from fusionloader.plan.arguments import MOST_NESTED, Context, NestedTooDeep, NotCompiled, Transform
from fusionloader.plan.patches import is_patched
from fusionloader.plan.stages import Convert
from fusionloader.plan.torchvision import conversions
from fusionloader.plan.transforms import Tail, called, stage_of

Function = Callable[..., Any]
Call = Callable[[Transform, Any], Any]


def calling(original: Function) -> Function:
    """Returns ``Compose.__call__`` of v1 or ``Compose.forward`` of v2."""

    @functools.wraps(original)
    def call(self: PillowImage, *inputs: Argument, **named: Argument) -> Any:
        image = inputs[0] if len(inputs) == 1 and not named else None
        if not isinstance(image, Image.Image):
            return original(self, *inputs, **named)
        steps = _steps_of(self)
        return original(self, image) if steps is None else steps.run(image)

    return call


def run_listed(tail: Tail, image: PillowImage) -> Any:
    """Returns what the transforms at a plan's end make of an image, as in a ``Compose``."""
    steps = _steps_of(tail) if activity.is_active() else None
    return tail(image) if steps is None else steps.run(image, called)


class _Steps:
    """A list of transforms, of which some are recorded and the last conversions are one table."""

    def __init__(self, steps: Sequence[Transform]) -> None:
        self._listed = list(steps)
        self._dtype = torch.get_default_dtype()
        self._snapshots: list[Snapshot | ListSnapshot] = []
        self._steps = list(self._flattened(steps))
        first = len(self._steps)
        while first and conversions.is_conversion(self._steps[first - 1]):
            first -= 1
        watched = [self._is_watched(step) for step in self._steps[first:]]
        self._first = first if all(watched) else len(self._steps)
        self._last = self._steps[self._first :]
        self._tables: dict[str, tuple[Convert, type] | None] = {}
        self._recorders = [self._recorder(step) for step in self._steps[: self._first]]
        # From here on all are recorded: what is a plain image there may as well be deferred.
        self._known = self._first
        while self._known and _is_known(self._steps[self._known - 1]):
            self._known -= 1

    def _flattened(self, steps: Sequence[Transform], depth: int = 0) -> Iterator[Transform]:
        """Yields the steps of lists within the list, too."""
        for step in steps:
            if not _is_list(step) or depth == MOST_NESTED:
                yield step
                continue
            self._snapshots.append(ListSnapshot(step))
            yield from self._flattened(step.transforms, depth + 1)

    def _is_watched(self, step: Transform) -> bool:
        """Whether a change of the transform will be seen from now on."""
        try:
            self._snapshots.append(Snapshot(step))
        except Unknown:
            return False
        return True

    def _recorder(self, step: Transform) -> Recorder | None:
        recorder = tried_recorder(step)
        return recorder if recorder is not None and self._is_watched(step) else None

    def are(self, steps: Sequence[Transform]) -> bool:
        """Whether the steps are still those that this was made of, and as they were."""
        return (
            len(steps) == len(self._listed)
            and all(map(operator.is_, steps, self._listed))
            and self._dtype is torch.get_default_dtype()
            and all(snapshot.is_current() for snapshot in self._snapshots)
        )

    def run(self, image: PillowImage, call: Call = lambda step, image: step(image)) -> Any:
        core = None
        for place, recorder in enumerate(self._recorders):
            if core is None and recorder is not None:
                core = _recordable(image)
            if core is not None:
                if recorder is not None and recorder.accepts(core.size):
                    core = recorder.record(core)
                    continue
                image, core = recorded_image(image, core), None
            if place == self._known and self._last:
                image = lifted(image)
            image = call(self._steps[place], image)
        if self._last:
            core = core or deferred_core(image)
            made = None if core is None else self._converted(core)
            if made is not None:
                return made
        if core is not None:
            image = recorded_image(image, core)
        for step in self._last:
            image = call(step, image)
        return image

    def _converted(self, core: DeferredCore) -> Any:
        table = self._table(core.mode)
        return None if table is None else _tensor(core, *table)

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


_MOST_STEPS = 64
# Steps that change with every image are not taken apart each time, which takes milliseconds.
_LEAST_CHANGES, _CALLS_PER_CHANGE = 8, 1000


class _Known:
    """What is known of one ``Compose``."""

    def __init__(self) -> None:
        self._steps: _Steps | None = None
        self._calls = self._changes = 0

    def steps(self, listed: Sequence[Transform]) -> _Steps | None:
        """Returns its steps as they are now; ``None`` where they change too often."""
        self._calls += 1
        if self._steps is None or not self._steps.are(listed):
            if self._changes > _LEAST_CHANGES + self._calls // _CALLS_PER_CHANGE:
                return None
            self._changes += 1
            self._steps = _Steps(listed)
        return self._steps


_known: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()


def _steps_of(compose: PillowImage) -> _Steps | None:
    """Returns the steps of a ``Compose`` as it is now; ``None`` where it is no plain list."""
    listed: Argument = getattr(compose, "transforms", None)
    if type(listed) not in (list, tuple) or len(listed) > _MOST_STEPS:
        return None
    try:
        known = _known.get(compose)
        if known is None:
            known = _known[compose] = _Known()
    except TypeError:  # a subclass without weak references or hash
        return None
    return known.steps(listed)


def _recordable(image: PillowImage) -> DeferredCore | None:
    """Returns the core of an image that recorders may go on with; an open file is not loaded."""
    core = getattr(image, "_im", None)
    if type(core) is not DeferredCore or core.mode != "RGB" or "transparency" in image.info:
        return None
    most = Image.MAX_IMAGE_PIXELS
    return core if most is None or core.size[0] * core.size[1] <= most else None


def _tensor(core: DeferredCore, convert: Convert, kind: type[torch.Tensor]) -> Any:
    try:
        made = core.tensor(convert)
    except ValueError:
        return None
    return made if kind is torch.Tensor else made.as_subclass(kind)


def lifted(image: PillowImage) -> Any:
    """Returns a plain RGB image as a deferred one, of its pixels, where images are deferred."""
    kind = type(image)
    if not activity.is_active():
        return image
    if kind is not Image.Image or image.mode != "RGB" or min(image.size) < 1:
        return image
    if type(image._im) is DeferredCore or "transparency" in image.info:
        return image
    source = Source(b"", image.size, np.array(image))
    return image_of(DeferredCore(source, (), "RGB", image.size), info_of(image))


def _is_list(step: Transform) -> bool:
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    return type(step) in (v1.Compose, v2.Compose) and not is_patched(step)


def _is_known(step: Transform) -> bool:
    try:
        return not is_patched(step) and bool(stage_of(step, Context(3, "pil")))
    except (NotCompiled, NestedTooDeep):
        return False
