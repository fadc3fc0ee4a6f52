"""Compiles transforms, one after the other, to the stages of a plan.

A transform is compiled only if its class is known, and not a subclass, which may do anything, and
if none of its methods was replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from fusionloader.transforms.plan import memory
from fusionloader.transforms.plan.arguments import Context, NeedsFloats, NotCompiled, Transform
from fusionloader.transforms.plan.compiled_transform import CompiledTransform, Note, Tail, text_of
from fusionloader.transforms.plan.parts import FIRST_STAGE, PASSES, PYTHON
from fusionloader.transforms.plan.patches import is_patched
from fusionloader.transforms.plan.sizes import result_size
from fusionloader.transforms.plan.stage_makers import flatten, make_stage, makes_grey
from fusionloader.transforms.plan.stages import (
    CenterCrop,
    Channels,
    ColorJitter,
    Convert,
    CropOrPad,
    Decode,
    Fixed,
    ImageKind,
    Layout,
    Plan,
    RandomChoice,
    RandomCrop,
    RandomHorizontalFlip,
    RandomPerspective,
    RandomPolicy,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ResizeKeepRatio,
    ResizeShorterSide,
    Stage,
    TrimBorder,
    flat,
    get_branches,
    makes_floats,
)
from fusionloader.transforms.plan.torchvision import conversions, erasing

_ANY_RGB = ImageKind()
# Stages that move pixels and change none.
_MOVING = (CenterCrop, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip)
_RESIZING = (RandomResizedCrop, Resize, ResizeKeepRatio, ResizeShorterSide, TrimBorder)


def compile_transform(
    transform: Transform, decode: Decode = "exact", images: ImageKind = _ANY_RGB
) -> CompiledTransform:
    """Returns the plan of a transform and what is left of it for Python.

    Args:
        transform: callable on a PIL image.
        decode: ``"exact"`` or ``"fast"``, as in ``Plan``.
        images: what is known of the images that it will get.
    """
    # torchvision makes tables of magnitudes on torch's default device, which may not be the CPU.
    with torch.device("cpu"):
        return _compile(list(flatten(transform)), decode, images)


def _compile(
    steps: list[Transform],
    decode: Decode,
    images: ImageKind,
    on_floats: bool = True,
    end: int | None = None,
    why_end: str = "code that follows may see how the tensor lies in memory",
) -> CompiledTransform:
    """Compiles steps before ``end``; without ``on_floats`` no stages work on floats."""
    compiling = _Compiling(images, decode, on_floats)
    for place, step in enumerate(steps):
        try:
            if place == end:
                raise NotCompiled(why_end)
            compiling.add(step, place)
        except NotCompiled as why:
            if compiling.unwrapped is not None:
                why_end = "code that follows may see that v1 makes a plain tensor of v2's image"
                return _compile(steps, decode, images, on_floats, compiling.unwrapped, why_end)
            since = compiling.unsure_since()
            if since is not None and any(map(_sees_memory, steps[place:])):
                return _compile(steps, decode, images, on_floats, since)
            if compiling.converted is None:
                return _with_tail(steps, place, str(why), compiling, images, decode)
            if not conversions.makes_plain_tensor(compiling.converted, compiling.channels):
                # A tail would see that the tensor lies in memory otherwise.
                return _compile(steps, decode, images, False, end)
            return _with_tail_on_floats(steps, place, str(why), images, decode)
    try:
        convert = compiling.conversion()
        stages = (*compiling.stages, *compiling.erasings())
    except NotCompiled as why:
        place = next(i for i, step in enumerate(steps) if conversions.is_conversion(step))
        return _with_tail(steps, place, str(why), compiling, images, decode)
    if compiling.erased and None in result_size(stages, images.height, images.width):
        place = next(i for i, step in enumerate(steps) if erasing.is_erasing(step))
        if compiling.converted is not None:
            return _compile(steps, decode, images, on_floats=False)
        return _with_tail(steps, place, "images differ in size here", compiling, images, decode)
    plan = _plan(stages, convert, compiling, images, decode)
    notes = tuple(_native_note(step, place, compiling) for place, step in enumerate(steps))
    return CompiledTransform(plan, None, notes)


@dataclass
class _Compiling:
    """The stages so far, and the channels and kind of the image after them."""

    images: ImageKind
    decode: Decode
    may_work_on_floats: bool
    stages: list[Stage] = field(default_factory=list)
    # Each pixel is converted by itself, so that conversions may as well come after all stages that
    # work on levels.
    conversions: list[Transform] = field(default_factory=list)
    # Those before the stages that work on floats, if there are any.
    converted: list[Transform] | None = None
    # RandomErasing, and the number of conversions before it.
    erased: list[tuple[Transform, int]] = field(default_factory=list)
    # By index of the step: index of its stage.
    native: dict[int, int] = field(default_factory=dict)
    # Indices of the steps that torchvision runs on tensors, but that round as on PIL images here.
    on_tensors: set[int] = field(default_factory=set)
    # The step that makes a tensor of the image, and whether it then lies channel by channel.
    tensor_step: int | None = None
    begins_planar: bool = False
    # The first step since which the tensor may be a window of a larger one, or lie otherwise than
    # ``planar`` says, which is whether it has come to lie channel by channel.
    window: int | None = None
    unsure: int | None = None
    planar: bool = False
    # The first step of v1 on an image of v2's type, of which it makes a plain tensor, if it changes
    # any: code that follows may see that.
    unwrapped: int | None = None
    # Whether v2 may have turned it by 90 degrees, and with it how it lies in memory.
    transposed: bool = False
    # Whether the channels may be one in memory.
    spread: bool = False
    # As of the plan.
    tensor_from: int = 0
    copied_from: int = 0
    # How the floats lie in memory before the stages that work on them.
    layout: Layout = "kept"
    # Whether v1 has resized them, or turned their hue: these change how they lie in memory.
    resized_by_v1: bool = False
    turned_by_v1: bool = False
    # Whether a pixel of the floats may be no number.
    may_be_no_number: bool = False

    def __post_init__(self) -> None:
        self.channels: Channels = self.images.channels
        self.held = "pil"

    def add(self, step: Transform, place: int) -> None:
        if is_patched(step):
            raise NotCompiled("its methods were replaced or hooked")
        if conversions.is_conversion(step):
            if self.unwrapped is not None and isinstance(getattr(step, "dtype", None), dict):
                raise NotCompiled("it depends on the tensor's type, which v1 has changed")
            held = conversions.held_after([*self.conversions, step], self.channels)
            if self.converted is not None:
                normalizing = conversions.stage_on_floats(step, self.channels)
                self.stages += [] if normalizing is None else [normalizing]
            copies = held != self.held
            if conversions.is_normalize(step):
                copies |= self._normalizes(step)
            if self.held == "pil" and copies:
                self.tensor_from, self.tensor_step = len(self.stages), place
                made = [*self.conversions, step]
                self.begins_planar = conversions.makes_contiguous_tensor(made, self.channels)
            if copies and self.converted is None:
                self.copied_from = len(self.stages)
            self.held = held
            self.conversions.append(step)
            self.spread &= not copies
            if copies and not self.turned_by_v1:
                self.window = None
                if self.begins_planar and not self.transposed:
                    self.unsure = None
        elif erasing.is_erasing(step):
            if self.held == "pil":
                raise NotCompiled("it erases from a PIL image")
            if self.spread and step.inplace:
                raise NotCompiled("torch refuses to change a grey tensor in place")
            self.erased.append((step, len(self.conversions)))
        elif self.erased:
            raise NotCompiled("it comes after RandomErasing")
        else:
            context = self._context()
            try:
                stage = make_stage(step, context)
            except NeedsFloats:
                self._require_floats()
                stage = make_stage(step, replace(context, elements=None, on_floats=True))
                self._begin_floats()
            if self.held != "pil":
                self._note_layout(step, stage, place)
            if makes_grey(stage) and step.num_output_channels == 1:
                self.channels = 1
            self.stages.append(stage)
            self.native[place] = len(self.stages) - 1
            rounds = self.decode == "fast" and not isinstance(stage, _MOVING)
            if self.held == "tensor" and rounds:
                self.on_tensors.add(place)

    def _context(self) -> Context:
        elements = None
        if self.held in ("floats", "other") and self.converted is None:
            elements = conversions.elements(self.conversions, self.channels)
        exact, on_floats = self.decode == "exact", self.converted is not None
        size = result_size(self.stages, self.images.height, self.images.width)
        return Context(self.channels, self.held, exact, 0, elements, True, on_floats, size)

    def _require_floats(self) -> None:
        if not self.may_work_on_floats or self.held != "floats":
            raise NeedsFloats
        conversions.table(self.conversions, self.channels)  # raises if there is none
        elements = conversions.elements(self.conversions, self.channels)
        if not bool((elements.abs() <= conversions.MOST_FLOAT).all()):
            raise NotCompiled("its conversion makes floats that are too large")

    def _begin_floats(self) -> None:
        self.converted = list(self.conversions)
        if conversions.makes_contiguous_tensor(self.conversions, self.channels):
            self.layout = "planar"
        self.stages.append(Fixed(("to_floats", self.layout)))

    def _may_exceed_unit(self) -> bool:
        """Whether the conversions make floats below 0 or above 1, as without scaling."""
        elements = conversions.elements(self.conversions, self.channels)
        return bool(elements.min() < 0 or elements.max() > 1)

    def unsure_since(self) -> int | None:
        """Returns the first step since which it is not known how the tensor lies in memory."""
        return min((at for at in (self.window, self.unsure) if at is not None), default=None)

    def _least_size(self) -> tuple[int, int]:
        last = self.stages[-1] if self.stages else None
        if isinstance(last, ResizeShorterSide) and last.max_size is None:
            return last.size, last.size
        height, width = result_size(self.stages, self.images.height, self.images.width)
        return height or 0, width or 0

    def _normalizes(self, step: Transform) -> bool:
        """Returns whether the step makes a new tensor."""
        if step.inplace and self.spread:
            raise NotCompiled("torch refuses to change a grey tensor in place")
        if step.inplace and self.window is not None and self.converted is not None:
            raise NotCompiled("it changes a window in place")
        return not step.inplace

    def _note_layout(self, step: Transform, stage: Stage, place: int) -> None:
        by_v1 = type(step).__module__ == "torchvision.transforms.transforms"
        is_first = by_v1 and self.unwrapped is None
        if is_first and conversions.makes_image(self.conversions, self.channels):
            self.unwrapped = place
        turns = memory.may_transpose(stage)
        alone = isinstance(stage, RandomPolicy) and stage.repeats == 1
        if (self.transposed or (turns and not alone)) and memory.sees_order(stage):
            raise NotCompiled("how the tensor lies in memory after a turn by 90 degrees decides it")
        self.transposed |= turns
        effect = memory.effect_of(stage, by_v1, self._least_size(), self.window is not None)
        if self.begins_planar and isinstance(stage, (Resize, ResizeShorterSide)):
            effect = "kept"
        if effect == "planar":
            self.planar, self.window, self.unsure = True, None, None
        elif effect == "window" and self.window is None:
            self.window = place
        elif effect == "unsure" and self.unsure is None:
            self.unsure = place
        self.spread |= memory.spreads(stage)
        if self.converted is None:
            return
        self.resized_by_v1 |= by_v1 and isinstance(stage, _RESIZING)
        each_stage = list(flat((stage,)))
        jitters = [each for each in each_stage if isinstance(each, ColorJitter)]
        self.may_be_no_number |= any(isinstance(each, RandomPerspective) for each in each_stage)
        hues = _most_hues(stage)
        # A hue turned where the largest channel is 0 and another one is below is no number.
        beyond = hues > 0 and self._may_exceed_unit()
        if hues and (self.may_be_no_number or (beyond and hues > 1)):
            raise NotCompiled("torch hues the hue of what is no number, as behind a perspective")
        self.may_be_no_number |= beyond
        sees_layout = any(each.contrast and each.rounding == "torch_v2" for each in jitters)
        if sees_layout and self.resized_by_v1 and self.layout != "planar":
            raise NotCompiled("how the tensor lies in memory after v1's resize is not known")
        self.turned_by_v1 |= any(each.hue and each.rounding == "torch_v1" for each in jitters)

    def conversion(self) -> Convert | None:
        if self.held == "pil":
            return None
        converted = self.conversions if self.converted is None else self.converted
        return conversions.table(converted, self.channels)

    def erasings(self) -> list[Stage]:
        return [
            erasing.random_erasing(
                step,
                conversions.type_after(self.conversions[:before], self.channels),
                self.conversions[before:],
                self.channels,
            )
            for step, before in self.erased
        ]


def _plan(
    stages: Sequence[Stage],
    convert: Convert | None,
    compiling: _Compiling,
    images: ImageKind,
    decode: Decode,
) -> Plan:
    height, width = result_size(stages, images.height, images.width)
    plan = Plan(tuple(stages), convert, height, width, decode, images.channels, compiling.channels)
    if not 0 < compiling.copied_from < len(stages):
        return plan
    return replace(plan, tensor_from=compiling.tensor_from, copied_from=compiling.copied_from)


def _with_tail(
    steps: list[Transform],
    place: int,
    why: str,
    compiling: _Compiling,
    images: ImageKind,
    decode: Decode,
) -> CompiledTransform:
    """Compiles what precedes ``place``, except for conversions: with them the tail begins."""
    reasons: dict[int, str] = {}
    for number, step in enumerate(steps):
        if number == place:
            reasons[number] = why
        elif conversions.is_conversion(step) or erasing.is_erasing(step):
            reasons[number] = "what follows runs in Python"
        elif number not in compiling.native:
            reasons[number] = "follows it"
    notes = tuple(
        Note(text_of(step), reasons[i], part=PYTHON)
        if i in reasons
        else _native_note(step, i, compiling)
        for i, step in enumerate(steps)
    )
    left = [(i, step) for i, step in enumerate(steps) if i in reasons]
    rest = [step for _, step in left]
    first = compiling.tensor_step
    if first is not None and compiling.planar and not compiling.begins_planar:
        rest.insert([i for i, _ in left].index(first) + 1, _channel_by_channel)
    tail = Tail(rest)
    plan = _plan(compiling.stages, None, compiling, images, decode)
    return CompiledTransform(plan, tail, notes)


def _channel_by_channel(image: torch.Tensor) -> torch.Tensor:
    """Returns the image as it lies in memory after what has been done natively."""
    from torchvision import tv_tensors

    made = image.contiguous()
    return tv_tensors.wrap(made, like=image) if isinstance(image, tv_tensors.Image) else made


def _with_tail_on_floats(
    steps: list[Transform], place: int, why: str, images: ImageKind, decode: Decode
) -> CompiledTransform:
    """Compiles what precedes ``place``, except for erasing: its result is a tensor."""
    first = next((i for i, step in enumerate(steps[:place]) if erasing.is_erasing(step)), place)
    compiling = _Compiling(images, decode, True)
    for number, step in enumerate(steps[:first]):
        compiling.add(step, number)
    reasons = ["what follows runs in Python"] * (place - first) + [why]
    reasons += ["follows it"] * (len(steps) - place - 1)
    notes = (
        *(_native_note(step, number, compiling) for number, step in enumerate(steps[:first])),
        *(
            Note(text_of(step), reason, part=PYTHON)
            for step, reason in zip(steps[first:], reasons, strict=True)
        ),
    )
    convert = compiling.conversion()
    plan = _plan(compiling.stages, convert, compiling, images, decode)
    return CompiledTransform(plan, Tail(steps[first:]), notes)


def _sees_memory(step: Transform) -> bool:
    """Whether the result may depend on how a tensor lies in memory, as sums of floats do."""
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    kinds = (v1.Lambda, v2.Lambda, v1.LinearTransformation, v2.LinearTransformation)
    is_known = type(step).__module__.startswith("torchvision.transforms.")
    colors = ("transforms", "contrast", "num_magnitude_bins", "policy")
    changes = any(hasattr(step, name) for name in colors)
    return not is_known or is_patched(step) or isinstance(step, kinds) or changes


def _native_note(step: Transform, place: int, compiling: _Compiling) -> Note:
    rounding = "as on PIL images" if place in compiling.on_tensors else ""
    number = compiling.native.get(place)
    if (
        number is None
        or any(map(makes_floats, compiling.stages[:number]))
        or _runs_in_passes(compiling.stages[number])
    ):
        return Note(text_of(step), "", rounding, PASSES)
    return Note(text_of(step), "", rounding, FIRST_STAGE + number)


def _most_hues(stage: Stage) -> int:
    """Returns how often a stage may turn the hue of an image."""
    if isinstance(stage, ColorJitter):
        return int(stage.hue is not None)
    turns = [sum(map(_most_hues, branch)) for branch in get_branches(stage)]
    return max(turns, default=0) if isinstance(stage, RandomChoice) else sum(turns)


def _runs_in_passes(stage: Stage) -> bool:
    constant = isinstance(stage, CropOrPad) and stage.mode == "constant"
    return constant or isinstance(stage, (*_MOVING, *_RESIZING))
