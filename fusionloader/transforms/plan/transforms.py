"""Compiles transforms, one after the other, to the stages of a plan.

A transform is compiled only if its class is known, and not a subclass, which may do anything, and
if none of its methods was replaced.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from PIL import Image

from fusionloader.transforms.plan import memory, registry, wrappers
from fusionloader.transforms.plan.arguments import (
    MOST_NESTED,
    Context,
    Converter,
    NeedsFloats,
    NestedTooDeep,
    NotCompiled,
    Transform,
    for_both_versions,
)
from fusionloader.transforms.plan.parts import FIRST_STAGE, PASSES, PYTHON
from fusionloader.transforms.plan.patches import is_patched
from fusionloader.transforms.plan.sizes import result_size
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
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomHorizontalFlip,
    RandomOrder,
    RandomPerspective,
    RandomPolicy,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ResizeKeepRatio,
    ResizeShorterSide,
    Stage,
    TrimBorder,
    get_branches,
    makes_floats,
)
from fusionloader.transforms.plan.timm.transforms import converters as timm_converters
from fusionloader.transforms.plan.torchvision import (
    colors,
    conversions,
    erasing,
    policies,
    warps,
    windows,
)

_ANY_RGB = ImageKind()
Found = TypeVar("Found")
DECODING = "decode"  # stage of a note: what runs row by row with it is counted with it
# Stages that move pixels and change none.
_MOVING = (CenterCrop, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip)
_RESIZING = (RandomResizedCrop, Resize, ResizeKeepRatio, ResizeShorterSide, TrimBorder)


@dataclass(frozen=True, slots=True)
class Note:
    """One line of ``explain()``: a transform, and why it runs in Python (empty if native).

    ``rounding`` says how a native one rounds, where PIL images and tensors differ. ``part`` is the
    part of the plan that its time is counted in, as in ``csrc/queue/parts.hpp``.
    """

    stage: str
    why: str
    rounding: str = ""
    part: int = PASSES


@dataclass(frozen=True, slots=True)
class CompiledTransform:
    """A transform as a plan and a tail.

    ``tail`` takes the PIL image that the native stages make, or a tensor if these work on floats,
    and returns the result of the whole transform; ``None`` if nothing is left to do in Python.
    ``notes`` has a line per transform.
    """

    plan: Plan
    tail: Tail | None
    notes: tuple[Note, ...]

    def explain(self) -> str:
        """Returns a line per transform: native, or Python and why."""
        return explain(self.notes)


def explain(notes: Sequence[Note], part_seconds: Sequence[float] = ()) -> str:
    """Returns a line per note.

    Args:
        notes: notes of a compiled transform.
        part_seconds: time by ``Note.part``; if given, lines say their share of it.
    """
    listed = {note.part for note in notes}  # without the time of writing into the batch
    total = sum(seconds for part, seconds in enumerate(part_seconds) if part in listed)
    lines: list[str] = []
    counted: dict[int, str] = {}
    for note in notes:
        native = f"native ({note.rounding})" if note.rounding else "native"
        line = f"{note.stage}: {f'python ({note.why})' if note.why else native}"
        if total and note.part in counted:
            line += f", counted {counted[note.part]}"
        elif total:
            line += f", {part_seconds[note.part] / total:.0%} of the time"
            counted[note.part] = "with decode" if note.stage == DECODING else "above"
        lines.append(line)
    return "\n".join(lines)


class Tail:
    """The transforms that run in Python, one after the other."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self.transforms: list[Transform] = list(transforms)

    def __call__(self, image: Image.Image | torch.Tensor) -> Any:
        """Returns the transformed image; an exception says which transform raised it."""
        result: Any = image
        for transform in self.transforms:
            result = called(transform, result)
        return result


def called(transform: Transform, image: Any) -> Any:
    """Returns ``transform(image)``; an exception says which transform raised it."""
    try:
        return transform(image)
    except Exception as error:
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"Transform: {_text(transform)}")
        raise


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
        return _compile(list(_flatten(transform)), decode, images)


def _compile(
    steps: list[Transform],
    decode: Decode,
    images: ImageKind,
    on_floats: bool = True,
    end: int | None = None,
) -> CompiledTransform:
    """Compiles steps before ``end``; without ``on_floats`` no stages work on floats."""
    compiling = _Compiling(images, decode, on_floats)
    for place, step in enumerate(steps):
        try:
            if place == end:
                raise NotCompiled("code that follows may see how the tensor lies in memory")
            compiling.add(step, place)
        except NotCompiled as why:
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
    may_divide_by_zero: bool = False

    def __post_init__(self) -> None:
        self.channels: Channels = self.images.channels
        self.held = "pil"

    def add(self, step: Transform, place: int) -> None:
        if is_patched(step):
            raise NotCompiled("its methods were replaced or hooked")
        if conversions.is_conversion(step):
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
            if _makes_grey(stage) and step.num_output_channels == 1:
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
        jitters = list(_find(ColorJitter, stage))
        self.may_divide_by_zero |= any(_find(RandomPerspective, stage))
        if self.may_divide_by_zero and any(each.hue for each in jitters):
            raise NotCompiled("torch turns the hue of what is no number, as behind a perspective")
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
        Note(_text(step), reasons[i], part=PYTHON)
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
            Note(_text(step), reason, part=PYTHON)
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
        return Note(_text(step), "", rounding, PASSES)
    return Note(_text(step), "", rounding, FIRST_STAGE + number)


def _runs_in_passes(stage: Stage) -> bool:
    constant = isinstance(stage, CropOrPad) and stage.mode == "constant"
    return constant or isinstance(stage, (*_MOVING, *_RESIZING))


def _flatten(transform: Transform, around: tuple[Transform, ...] = ()) -> Iterator[Transform]:
    """Yields the steps of nested lists; a list nested too deep, or in itself, is a step itself."""
    endless = len(around) > MOST_NESTED or any(outer is transform for outer in around)
    steps = None if endless else _listed(transform)
    if steps is None:
        yield transform
        return
    for step in steps:
        yield from _flatten(step, (*around, transform))


def _listed(transform: Transform) -> Iterable[Transform] | None:
    """Returns the steps of a transform that is only a list of them, ``None`` for any other."""
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    if is_patched(transform):
        return None
    if type(transform) in (v1.Compose, v2.Compose, Tail):
        steps: Iterable[Transform] = transform.transforms
        return steps
    if type(transform) is torch.nn.Sequential:
        return transform
    try:
        return wrappers.called_transforms(transform)
    except NotCompiled:
        return None


def make_stage(step: Transform, context: Context) -> Stage:
    """Returns the stage of one transform.

    Raises:
        NotCompiled: it has none.
        NestedTooDeep: it is a list of transforms.
    """
    kind = type(step)
    # Not cached: timm and the modules of this package's transforms may be imported at any time.
    found = (known.get(kind) for known in (_converters(), registry.converters(), timm_converters()))
    convert = next(filter(None, found), None)
    if convert is None:
        if _listed(step) is not None:
            raise NestedTooDeep
        raise NotCompiled(wrappers.why_not_taken_apart(step))
    try:
        return convert(step, context)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise NotCompiled(f"its arguments are not as its class makes them: {error}") from None


@functools.cache
def _converters() -> dict[type, Converter]:
    return {
        **windows.converters(),
        **colors.converters(),
        **warps.converters(),
        **policies.converters(),
        **_container_converters(),
    }


def _container_converters() -> dict[type, Converter]:
    # A random container is compiled only if all that it holds is.
    def apply(step: Transform, context: Context) -> Stage:
        return RandomApply(float(step.p), _compile_all(list(step.transforms), context.inside()))

    def choice(step: Transform, context: Context) -> Stage:
        branches = tuple(_compile_all([inner], context.inside()) for inner in step.transforms)
        weights = (1.0,) * len(branches) if step.p is None else tuple(map(float, step.p))
        if len(weights) != len(branches) or min(weights) < 0 or sum(weights) <= 0:
            raise NotCompiled(f"p={step.p!r}")
        return RandomChoice(branches, weights)

    def order(step: Transform, context: Context) -> Stage:
        inside = context.inside()
        return RandomOrder(tuple(_compile_all([inner], inside) for inner in step.transforms))

    known = {"RandomApply": apply, "RandomChoice": choice, "RandomOrder": order}
    return for_both_versions(known)


def _find(kind: type[Found], stage: Stage) -> Iterator[Found]:
    """Yields what is of a kind: the stage itself, or in its branches."""
    if isinstance(stage, kind):
        yield stage
    for branch in get_branches(stage):
        for each in branch:
            yield from _find(kind, each)


def _makes_grey(stage: Stage) -> bool:
    return isinstance(stage, Fixed) and stage.operation[0] == "grayscale"


def _compile_all(steps: Sequence[Transform], context: Context) -> tuple[Stage, ...]:
    made: list[Stage] = []
    for step in (inner for outer in steps for inner in _flatten(outer)):
        try:
            if is_patched(step):
                raise NotCompiled("its methods were replaced or hooked")
            if conversions.is_conversion(step) or erasing.is_erasing(step):
                raise NotCompiled("it converts only sometimes")
            stage = make_stage(step, context)
            if _makes_grey(stage) and getattr(step, "num_output_channels", 3) == 1:
                raise NotCompiled("it changes the number of channels only sometimes")
        except (NestedTooDeep, NeedsFloats):
            raise
        except NotCompiled as why:
            raise NotCompiled(f"it contains {_text(step)}: {why}") from None
        made.append(stage)
    return tuple(made)


def _text(step: Transform) -> str:
    try:
        text = " ".join(repr(step).split())
    except Exception:  # the user's __repr__
        text = f"<{type(step).__name__}>"
    return text if len(text) <= 100 else text[:97] + "..."
