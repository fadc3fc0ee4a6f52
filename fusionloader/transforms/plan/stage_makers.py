"""Makes the stage of a transform, by its class."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence

import torch

from fusionloader.transforms.plan import registry, wrappers
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
from fusionloader.transforms.plan.compiled_transform import Tail, text_of
from fusionloader.transforms.plan.patches import is_patched
from fusionloader.transforms.plan.stages import Fixed, RandomApply, RandomChoice, RandomOrder, Stage
from fusionloader.transforms.plan.timm.transforms import converters as timm_converters
from fusionloader.transforms.plan.torchvision import (
    colors,
    conversions,
    erasing,
    policies,
    warps,
    windows,
)


def flatten(transform: Transform, around: tuple[Transform, ...] = ()) -> Iterator[Transform]:
    """Yields the steps of nested lists; a list nested too deep, or in itself, is a step itself."""
    endless = len(around) > MOST_NESTED or any(outer is transform for outer in around)
    steps = None if endless else _listed(transform)
    if steps is None:
        yield transform
        return
    for step in steps:
        yield from flatten(step, (*around, transform))


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
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
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
        branches = tuple(_compile_all([inner], inside) for inner in step.transforms)
        return RandomOrder(branches) if branches else RandomApply(1.0, ())

    known = {"RandomApply": apply, "RandomChoice": choice, "RandomOrder": order}
    return for_both_versions(known)


def makes_grey(stage: Stage) -> bool:
    return isinstance(stage, Fixed) and stage.operation[0] == "grayscale"


def _compile_all(steps: Sequence[Transform], context: Context) -> tuple[Stage, ...]:
    made: list[Stage] = []
    for step in (inner for outer in steps for inner in flatten(outer)):
        try:
            if is_patched(step):
                raise NotCompiled("its methods were replaced or hooked")
            if conversions.is_conversion(step) or erasing.is_erasing(step):
                raise NotCompiled("it converts only sometimes")
            stage = make_stage(step, context)
            if makes_grey(stage) and getattr(step, "num_output_channels", 3) == 1:
                raise NotCompiled("it changes the number of channels only sometimes")
        except (NestedTooDeep, NeedsFloats):
            raise
        except NotCompiled as why:
            raise NotCompiled(f"it contains {text_of(step)}: {why}") from None
        made.append(stage)
    return tuple(made)
