"""torchvision's transforms on deferred images: the same draws and operations, with less Python.

Calls between torchvision's functions take longer than its draws. The recorders draw from torch's
generator by the same calls in the same order, and record the same operations. ``trials`` compares
each recorder with its transform before the recorder is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fusionloader.data.deferred import methods
from fusionloader.data.deferred.core import BLACK, DeferredCore
from fusionloader.transforms.plan import stages
from fusionloader.transforms.plan.arguments import Context, NestedTooDeep, NotCompiled, Transform
from fusionloader.transforms.plan.patches import is_patched
from fusionloader.transforms.plan.sizes import result_size
from fusionloader.transforms.plan.stages import Operation
from fusionloader.transforms.plan.transforms import make_stage

Size = tuple[int, int]

_ATTEMPTS = 10  # torchvision's RandomResizedCrop tries so often, then it takes the middle
_PILLOW_FILTERS = {name: number for number, name in methods.FILTERS.items()}


def _all(size: Size) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class TransformRecorder:
    """Records one transform of RGB images.

    Attributes:
        record: returns the core after the transform; draws as the transform does.
        accepts: whether ``record`` may be called for an image of a given width and height.
        keeps_size: whether the result has the size of the image.
    """

    record: Callable[[DeferredCore], DeferredCore]
    accepts: Callable[[Size], bool] = _all
    keeps_size: bool = True


def make_recorder(step: Transform) -> TransformRecorder | None:
    """Returns the recorder of a transform; ``None`` if the transform has to be called."""
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    if torch.get_default_dtype() is not torch.float32 or is_patched(step):
        return None
    if torch.get_default_device().type != "cpu":  # torchvision draws from another generator
        return None
    if type(step) in (v1.RandomApply, v2.RandomApply):
        return _random_apply(step, inclusive=type(step) is v1.RandomApply)
    try:
        stage = make_stage(step, Context(3, "pil"))
    except (NotCompiled, NestedTooDeep):
        return None
    make = _MAKERS.get(type(stage))
    return make(stage) if make else None


def _random_apply(step: Transform, inclusive: bool) -> TransformRecorder | None:
    """Returns the recorder of ``RandomApply``; ``inclusive`` if a draw equal to p applies it."""
    if type(step.transforms) not in (list, tuple):
        return None
    found = [make_recorder(inner) for inner in step.transforms]
    inner = [recorder for recorder in found if recorder is not None and recorder.keeps_size]
    if len(inner) < len(found):
        return None
    probability = _single(step.p)

    def record(core: DeferredCore) -> DeferredCore:
        drawn = torch.rand(1).item()
        if drawn < probability or (inclusive and drawn == probability):
            for recorder in inner:
                core = recorder.record(core)
        return core

    return TransformRecorder(record, lambda size: all(recorder.accepts(size) for recorder in inner))


def _sometimes(stage: stages.RandomApply) -> TransformRecorder | None:
    """Returns the recorder of a transform that applies one operation with a probability."""
    if len(stage.stages) != 1 or not isinstance(stage.stages[0], stages.Fixed):
        return None
    return _with_probability(stage.probability, stage.stages[0].operation)


def _with_probability(probability: float, operation: Operation) -> TransformRecorder:
    limit = _single(probability)
    return TransformRecorder(
        lambda core: core.then(operation) if torch.rand(1).item() < limit else core
    )


def _single(probability: float) -> float:
    """Returns a probability rounded to float32, as torch does before it compares."""
    return torch.tensor(probability).item()


def _fixed(stage: stages.Fixed) -> TransformRecorder | None:
    if stage.operation[0] == "pad":
        return None
    return TransformRecorder(lambda core: core.then(stage.operation))


def _uniform(low: float, high: float) -> float:
    return torch.empty(1).uniform_(low, high).item()


def _random_resized_crop(stage: stages.RandomResizedCrop) -> TransformRecorder:
    smallest, largest = stage.scale
    narrowest, widest = torch.log(torch.tensor(stage.ratio)).tolist()
    resize = _resize_to((stage.width, stage.height), stage.filters[0])

    def record(core: DeferredCore) -> DeferredCore:
        width, height = core.size
        for _ in range(_ATTEMPTS):
            area = width * height * _uniform(smallest, largest)
            aspect = torch.exp(torch.empty(1).uniform_(narrowest, widest)).item()
            w, h = int(round(math.sqrt(area * aspect))), int(round(math.sqrt(area / aspect)))
            if 0 < w <= width and 0 < h <= height:
                top = torch.randint(0, height - h + 1, (1,)).item()
                left = torch.randint(0, width - w + 1, (1,)).item()
                return resize(_crop(core, left, top, w, h))
        return resize(_middle_within(core, stage.ratio))

    # A smaller image may have no window of that ratio.
    least = max(1.0, 1 / stage.ratio[1], stage.ratio[0])
    return TransformRecorder(record, lambda size: min(size) >= least, keeps_size=False)


def _middle_within(core: DeferredCore, ratio: stages.Range) -> DeferredCore:
    """Returns the largest window in the middle whose aspect ratio is in the range."""
    width, height = w, h = core.size
    if width / height < ratio[0]:
        h = int(round(w / ratio[0]))
    elif width / height > ratio[1]:
        w = int(round(h * ratio[1]))
    return _crop(core, (width - w) // 2, (height - h) // 2, w, h)


def _crop(core: DeferredCore, left: float, top: float, width: int, height: int) -> DeferredCore:
    size = width, height
    if size == core.size:  # torchvision returns a new image of the same pixels
        return DeferredCore(core.source, core.operations, core.mode, size)
    return core.then(("crop", left, top, *size, BLACK), size)


def _resize_to(size: Size, filter: stages.Filter) -> Callable[[DeferredCore], DeferredCore]:
    resample = _PILLOW_FILTERS[filter]

    def resize(core: DeferredCore) -> DeferredCore:
        resized = methods.resize(core, size, resample)
        assert resized is not None  # the plan knows the filter, and has checked the size
        return resized

    return resize


def _resize(stage: stages.Resize) -> TransformRecorder:
    return TransformRecorder(
        _resize_to((stage.width, stage.height), stage.filter), keeps_size=False
    )


def _resize_shorter_side(stage: stages.ResizeShorterSide) -> TransformRecorder:
    def sides(size: Size) -> Size | None:
        height, width = result_size((stage,), size[1], size[0])
        return None if width is None or height is None else (width, height)

    def accepts(size: Size) -> bool:
        after = sides(size)
        return after is not None and max(after) <= methods.MOST_SIDE

    def record(core: DeferredCore) -> DeferredCore:
        size = sides(core.size)
        assert size is not None  # accepts() was true
        return _resize_to(size, stage.filter)(core)

    return TransformRecorder(record, accepts, keeps_size=False)


def _center_crop(stage: stages.CenterCrop) -> TransformRecorder:
    def record(core: DeferredCore) -> DeferredCore:
        width, height = core.size
        left = int(round((width - stage.width) / 2.0))
        top = int(round((height - stage.height) / 2.0))
        return _crop(core, left, top, stage.width, stage.height)

    def accepts(size: Size) -> bool:
        fits = stage.width <= size[0] and stage.height <= size[1]
        return fits and size != (stage.width, stage.height)  # where v1 and v2 may differ

    return TransformRecorder(record, accepts, keeps_size=False)


def _random_crop(stage: stages.RandomCrop) -> TransformRecorder | None:
    if any(stage.padding) or stage.pad_if_needed:
        return None

    def record(core: DeferredCore) -> DeferredCore:
        width, height = core.size
        top = torch.randint(0, height - stage.height + 1, (1,)).item()
        left = torch.randint(0, width - stage.width + 1, (1,)).item()
        return _crop(core, left, top, stage.width, stage.height)

    def accepts(size: Size) -> bool:
        # If a side equals that of the crop, v1 and v2 differ in what they draw.
        return stage.width < size[0] and stage.height < size[1]

    return TransformRecorder(record, accepts, keeps_size=False)


def _color_jitter(stage: stages.ColorJitter) -> TransformRecorder:
    ranges = {
        "brightness": stage.brightness,
        "contrast": stage.contrast,
        "saturation": stage.saturation,
        "hue": stage.hue,
    }

    def record(core: DeferredCore) -> DeferredCore:
        order = torch.randperm(4).tolist()
        drawn = [(name, _uniform(*range)) if range else None for name, range in ranges.items()]
        for place in order:
            operation = drawn[place]
            core = core.then(operation) if operation else core
        return core

    return TransformRecorder(record)


def _gaussian_blur(stage: stages.GaussianBlur) -> TransformRecorder:
    def accepts(size: Size) -> bool:
        return stage.kernel_width // 2 < size[0] and stage.kernel_height // 2 < size[1]

    def record(core: DeferredCore) -> DeferredCore:
        sigma = _uniform(*stage.sigma)
        return core.then(("blur", stage.kernel_width, stage.kernel_height, sigma, sigma))

    return TransformRecorder(record, accepts)


_MAKERS: dict[type, Callable[..., TransformRecorder | None]] = {
    stages.RandomResizedCrop: _random_resized_crop,
    stages.Resize: _resize,
    stages.ResizeShorterSide: _resize_shorter_side,
    stages.CenterCrop: _center_crop,
    stages.RandomCrop: _random_crop,
    stages.RandomHorizontalFlip: lambda stage: _with_probability(stage.probability, ("hflip",)),
    stages.RandomVerticalFlip: lambda stage: _with_probability(stage.probability, ("vflip",)),
    stages.RandomApply: _sometimes,
    stages.Fixed: _fixed,
    stages.ColorJitter: _color_jitter,
    stages.GaussianBlur: _gaussian_blur,
}
