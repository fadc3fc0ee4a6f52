"""Transforms of deferred images: known ones are recorded, the last conversions are one table."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from fusionloader.data.deferred import activity
from fusionloader.data.deferred.composed.recorders import Held, TransformRecorder
from fusionloader.data.deferred.composed.snapshots import ListSnapshot, Snapshots
from fusionloader.data.deferred.composed.trials import (
    recorded_image,
    recorded_tensor,
    tried_recorder,
)
from fusionloader.data.deferred.core import DeferredCore, deferred_core, wrap_pixels
from fusionloader.data.deferred.guard import guarded
from fusionloader.data.deferred.pillow import PillowImage
from fusionloader.data.deferred.tensors.deferred_image import DeferredImage
from fusionloader.data.deferred.tensors.deferred_tensor import (
    DeferredTensor,
    deferred_tensor,
    find_view,
    finish_sample,
    is_deferred,
    make_plain,
)
from fusionloader.data.deferred.tensors.level_tables import LEVELS, LevelTable
from fusionloader.data.deferred.tensors.tensor_view import TensorView
from fusionloader.data.deferred.unparsed import copy_info, is_transparent
from fusionloader.transforms.plan.arguments import (
    MOST_NESTED,
    Context,
    NestedTooDeep,
    NotCompiled,
    Transform,
)
from fusionloader.transforms.plan.patches import is_patched
from fusionloader.transforms.plan.stage_makers import make_stage
from fusionloader.transforms.plan.stages import Convert
from fusionloader.transforms.plan.torchvision import conversions

Call = Callable[[Transform, Any], Any]


@dataclass(frozen=True, slots=True)
class _Step:
    """A transform of a list, or of a list within it.

    Attributes:
        transform: the transform.
        place: its position, or that of its list, in the outer list.
        recorder: records the transform, and those that follow; ``None`` if it has to be called.
        is_known: whether the transform is torchvision's or timm's, and runs no user code.
    """

    transform: Transform
    place: int
    recorder: TransformRecorder | None
    is_known: bool


class RecordedSteps:
    """A list of transforms: some are recorded, and the conversions at its end are one table.

    Attributes:
        held: what holds the images, as ``Context.held``.
    """

    held: Held = "pil"

    def __init__(self, listed: Sequence[Transform], attributes: Snapshots | None = None) -> None:
        """Analyzes a list; ``attributes`` are of an outer list that has all its steps."""
        self._listed = list(listed)
        self._dtype, self._device = torch.get_default_dtype(), _default_device()
        self._attributes = Snapshots() if attributes is None else attributes
        self._lists: list[ListSnapshot] = []
        self._following: dict[int, RecordedTensorSteps] = {}  # by their first step
        flat = [(step, at) for at, each in enumerate(listed) for step in self._flattened(each)]
        first = len(flat)
        while first and conversions.is_conversion(flat[first - 1][0]):
            first -= 1
        if not all([self._attributes.add(step) for step, _ in flat[first:]]):
            first = len(flat)
        self._last = [step for step, _ in flat[first:]]
        self._tables: dict[str, tuple[Convert, type] | None] = {}
        self._steps: list[_Step] = []
        following: TransformRecorder | None = None
        for step, at in reversed(flat[:first]):
            recorder = self._recorder(step)
            following = recorder.then(following) if recorder and following else recorder
            self._steps.insert(0, _Step(step, at, following, _is_known(step)))
        # All steps from here on are known, so a plain image may be deferred without harm.
        self._known = first
        while self._known and self._steps[self._known - 1].is_known:
            self._known -= 1
        self._begun = self._find_begun()

    def _flattened(self, step: Transform, depth: int = 0) -> list[Transform]:
        """Returns the steps of a nested list, or the list itself if it runs user code.

        User code might change the list while it runs.
        """
        if not _is_list(step) or depth == MOST_NESTED:
            return [step]
        inner = [each for one in step.transforms for each in self._flattened(one, depth + 1)]
        if not all(conversions.is_conversion(each) or _is_known(each) for each in inner):
            return [step]
        self._lists.append(ListSnapshot(step))
        return inner

    def _find_begun(self) -> type[DeferredTensor] | None:
        """Returns the class of the tensor that the step before the known ones makes of an image."""
        step = self._steps[self._known - 1].transform if self._known else None
        kind = _begun_by(step)
        return kind if kind is not None and self._attributes.add(step) else None

    def _recorder(self, step: Transform) -> TransformRecorder | None:
        recorder = tried_recorder(step, self.held)
        return recorder if recorder is not None and self._attributes.add(step) else None

    def are(self, steps: Sequence[Transform]) -> bool:
        """Whether these are the steps that this was made of, all of them unchanged."""
        return (
            len(steps) == len(self._listed)
            and all(map(operator.is_, steps, self._listed))
            and self._dtype is torch.get_default_dtype()
            and self._device == _default_device()
            and self._attributes.are_current()
            and all(map(ListSnapshot.is_current, self._lists))
        )

    def run(
        self,
        listed: Sequence[Transform],
        image: PillowImage,
        call: Call = lambda step, image: step(image),
    ) -> Any:
        """Applies the steps to an image; ``listed`` is the list that they were taken from."""
        image, number = _record(self, image, 0)
        return self._run_from(listed, image, number, call)

    def _run_from(
        self, listed: Sequence[Transform], image: PillowImage, number: int, call: Call
    ) -> Any:
        while number < len(self._steps):
            step = self._steps[number]
            begun = _begin(self, image, number)
            if begun is not None:
                return begun.run(call)
            image = call(step.transform, image)
            if not step.is_known and not _are(self, listed):  # user code changed another step
                return _run_rest(listed, step.place + 1, image, call)
            following = _follow(self, image, number + 1)
            if following is not None:
                return following.run(following._listed, image, call)
            image, number = _record(self, image, number + 1)
        for transform in self._last[number - len(self._steps) :]:
            image = call(transform, image)
        return image

    def follow(self, image: Any, number: int) -> RecordedTensorSteps | None:
        """Returns the steps from ``number`` on of a tensor that was an image of Pillow's.

        ``None`` if user code, which might change the list, is among them.
        """
        if self.held != "pil" or number < self._known or not is_deferred(image):
            return None
        return self._steps_from(number)

    def _steps_from(self, number: int) -> RecordedTensorSteps:
        if number not in self._following:
            rest = [*(step.transform for step in self._steps[number:]), *self._last]
            self._following[number] = RecordedTensorSteps(rest, self._attributes)
        return self._following[number]

    def begin(self, image: Any, number: int) -> _BegunTensor | None:
        """Returns the tensor that a step makes of an image, if the step after it is recorded."""
        if self._begun is None or number + 1 != self._known:
            return None
        steps = self._steps_from(number + 1)
        if not (steps._steps and steps._steps[0].recorder):
            return None
        core = deferred_core(image)
        if core is None or core.mode != "RGB":
            return None
        view = TensorView.of_all(core, LEVELS, is_interleaved=True)
        return _BegunTensor(view, self._begun, steps)

    def recorded(self, image: Any, number: int) -> tuple[Any, int]:
        """Records steps from ``number`` on, and runs them if only conversions follow.

        Returns:
            The result, and the number of the first step that has to be called.
        """
        core = None
        if number < len(self._steps):
            if number == self._known and self._last:
                image = self._lifted(image)
            if self._steps[number].recorder is not None:
                core = self._recordable(image)
        if core is None:
            return self._recorded(image, core, number)
        state = torch.default_generator.get_state()
        try:
            return self._recorded(image, core, number)
        except Exception:
            torch.default_generator.set_state(state)
            raise

    def _recorded(self, image: Any, core: DeferredCore | None, number: int) -> tuple[Any, int]:
        if core is not None and (recorder := self._steps[number].recorder) is not None:
            core, done = recorder.record(core, self._most_pixels())
            number += done
        if number == len(self._steps) and self._last:
            made = self._converted(image, core)
            if made is not None:
                return made, number + len(self._last)
        return (image if core is None else self._image(image, core)), number

    def _lifted(self, image: Any) -> Any:
        """Returns a deferred image with a copy of the pixels, for a plain RGB image."""
        return _lifted(image)

    def _recordable(self, image: Any) -> DeferredCore | None:
        """Returns the core of an image that recorders take; an open file is not loaded for it."""
        return _recordable(image)

    def _most_pixels(self) -> float | None:
        """Returns the number of pixels above which Pillow warns of an image."""
        return Image.MAX_IMAGE_PIXELS

    def _image(self, image: Any, core: DeferredCore) -> Any:
        """Returns the image of ``core``, which was recorded from that of ``image``."""
        return recorded_image(image, core)

    def _converted(self, image: Any, core: DeferredCore | None) -> Any:
        """Returns the result of the last conversions; ``None`` if they have to be called."""
        core = core or deferred_core(image)
        table = None if core is None else self._table(core.mode)
        return None if core is None or table is None else _tensor(core, *table)

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


class RecordedTensorSteps(RecordedSteps):
    """The same for tensors that decoders return, or that begin within a list."""

    held = "tensor"

    def __init__(self, listed: Sequence[Transform], attributes: Snapshots | None = None) -> None:
        super().__init__(listed, attributes)
        self._levels: dict[type, tuple[LevelTable, type[DeferredTensor]] | None] = {}

    def _lifted(self, image: Any) -> Any:
        return image

    def _recordable(self, image: Any) -> DeferredCore | None:
        view = _find_view(image)
        return view.core if view is not None and view.memory.levels is LEVELS else None

    def _most_pixels(self) -> float | None:
        return None

    def _image(self, image: Any, core: DeferredCore) -> Any:
        return image.at(core) if type(image) is _BegunTensor else recorded_tensor(image, core)

    def _converted(self, image: Any, core: DeferredCore | None) -> Any:
        core = core or self._recordable(image)
        view = _find_view(image)
        if core is None or view is None or min(core.size) < 2:
            return None
        begun = type(image) is _BegunTensor
        kind = (image.kind if begun else type(image)).plain
        if kind not in self._levels:
            self._levels[kind] = self._compiled_levels(kind)
        found = self._levels[kind]
        if found is None:
            return None
        levels, made = found
        view = view.follow(core)
        if begun and not activity.defers_tensors():
            return _tensor(view.core, levels.convert, made.plain)
        return deferred_tensor(view.converted(levels), made)

    def _compiled_levels(self, kind: type) -> tuple[LevelTable, type[DeferredTensor]] | None:
        """Returns the table of the conversions, and the class of their result."""
        if any(map(is_patched, self._last)):
            return None

        def convert(levels: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = conversions.run(self._last, levels.as_subclass(kind))
            kinds.add(type(made))
            return levels if made.data_ptr() == levels.data_ptr() else made

        kinds: set[type] = set()
        levels = LEVELS.after(convert)
        if levels is None or levels is LEVELS:  # the tensor itself, and no copy
            return None
        return next(((levels, each) for each in _DEFERRED if {each.plain} == kinds), None)


class _BegunTensor(NamedTuple):
    """The tensor of an image within a list; user code sees it only if it asked for that.

    Attributes:
        view: all of the image.
        kind: class of the tensor.
        steps: the steps that follow.
    """

    view: TensorView
    kind: type[DeferredTensor]
    steps: RecordedTensorSteps

    def run(self, call: Call) -> Any:
        """Applies the steps; the result is made, in its row, unless tensors are deferred."""

        def call_plain(step: Transform, image: Any) -> Any:
            if is_deferred(image):
                make_plain(image, type(step).__name__)
            return call(step, image)

        is_seen = activity.defers_tensors()
        image, number = _record(self.steps, self, 0)
        if image is self:
            image = self.at(self.view.core)
        steps = self.steps
        made = steps._run_from(steps._listed, image, number, call if is_seen else call_plain)
        if not is_seen:
            finish_sample(made)
        return made

    def at(self, core: DeferredCore) -> DeferredTensor:
        """Returns the tensor of ``core``, which was recorded from this one."""
        return deferred_tensor(self.view.follow(core), self.kind)


def _find_view(image: Any) -> TensorView | None:
    return image.view if type(image) is _BegunTensor else find_view(image)


def _begun_by(step: Transform) -> type[DeferredTensor] | None:
    """Returns the class of the tensor that a step of torchvision's makes of an image of Pillow."""
    from torchvision.transforms import v2

    kinds = {v2.ToImage: DeferredImage, v2.PILToTensor: DeferredTensor}
    kind = kinds.get(type(step))
    if kind is None or is_patched(step):
        return None
    try:  # functions that it calls may be replaced
        made = step(Image.new("RGB", (1, 1), (1, 2, 3)))
        is_known = getattr(type(made), "plain", type(made)) is kind.plain
        return kind if is_known and made.flatten().tolist() == [1, 2, 3] else None
    except Exception:
        return None


_DEFERRED = (DeferredTensor, DeferredImage)
NAME = "torchvision.transforms.Compose"
# If one of these fails, the step is called.
_record = guarded(RecordedSteps.recorded, lambda steps, image, number: (image, number), NAME)
_are = guarded(RecordedSteps.are, lambda steps, listed: False, NAME)
_begin = guarded(RecordedSteps.begin, lambda steps, image, number: None, NAME)
_follow = guarded(RecordedSteps.follow, lambda steps, image, number: None, NAME)


def _run_rest(listed: Sequence[Transform], place: int, image: PillowImage, call: Call) -> Any:
    """Applies the rest of a list that user code may still change, as a ``for`` loop would."""
    while place < len(listed):
        image = call(listed[place], image)
        place += 1
    return image


def _recordable(image: PillowImage) -> DeferredCore | None:
    """Returns the core of an image that recorders take; an open file is not loaded for it."""
    core = getattr(image, "_im", None) if isinstance(image, Image.Image) else None
    if type(core) is not DeferredCore or core.mode != "RGB" or is_transparent(image):
        return None
    return core


def _tensor(core: DeferredCore, convert: Convert, kind: type[torch.Tensor]) -> Any:
    try:
        made = core.tensor(convert)
    except ValueError:
        return None
    return made if kind is torch.Tensor else made.as_subclass(kind)


def _lifted(image: PillowImage) -> Any:
    """Returns a deferred image with a copy of the pixels, for a plain RGB image."""
    kind = type(image)
    if kind is not Image.Image or image.mode != "RGB" or min(image.size) < 1:
        return image
    if type(image._im) is DeferredCore or is_transparent(image):
        return image
    return wrap_pixels(np.array(image), copy_info(image))


_CPU = torch.device("cpu")


def _default_device() -> torch.device:
    """Returns ``torch.get_default_device()``, which is the CPU where no mode is active."""
    if torch._C._len_torch_function_stack() == 0:
        return _CPU
    return torch.get_default_device()


def _is_list(step: Transform) -> bool:
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    if type(step) not in (v1.Compose, v2.Compose) or is_patched(step):
        return False
    return type(step.transforms) in (list, tuple)


def _is_known(step: Transform) -> bool:
    try:
        return not is_patched(step) and bool(make_stage(step, Context(3, "pil")))
    except (NotCompiled, NestedTooDeep):
        return False
