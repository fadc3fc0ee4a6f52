"""The transform of a ``Preprocessor``, which has to be compiled wholly."""

from __future__ import annotations

from dataclasses import dataclass

from fusionloader.data.sources.tables import layout_of
from fusionloader.transforms.executors.layout import Leaf
from fusionloader.transforms.plan.arguments import Transform
from fusionloader.transforms.plan.stages import Decode, Plan, is_random
from fusionloader.transforms.plan.transforms import compile_transform

_DECODE = ("exact", "fast")


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a transform was compiled to.

    Attributes:
        plan: what workers run.
        leaf: what they make of an image: shape and dtype.
        text: a line per transform, for ``explain()``.
    """

    plan: Plan
    leaf: Leaf
    text: str


def compile_wholly(transform: Transform, decode: Decode, seed: int | None) -> Prepared:
    """Returns what a transform is compiled to.

    Raises:
        ValueError: a part of it is not compiled, its results are no tensors of one shape, or it
            draws random numbers and there is no seed.
    """
    if decode not in _DECODE:
        raise ValueError(f"decode should be one of {_DECODE}, not {decode!r}")
    compiled = compile_transform(transform, decode)
    plan, text = compiled.plan, compiled.explain()
    if compiled.tail is not None:
        raise ValueError(
            "a Preprocessor has workers that run no Python code, and a part of this transform is "
            f"not compiled. Leave it to the model, or use the others:\n{text}"
        )
    if plan.convert is None:
        raise ValueError(f"the transform should end in a tensor: add ToTensor() to\n{text}")
    if plan.height is None or plan.width is None:
        raise ValueError(
            "the results of this transform differ in size, and could not be put into one batch: "
            f"add a resize or crop to a fixed size to\n{text}"
        )
    if seed is None and is_random(plan.stages):
        raise ValueError(
            "this transform draws random numbers. Give a seed, by which each image's draws depend "
            f"on its key alone, or use the transform of the validation:\n{text}"
        )
    layout = layout_of(plan)
    assert not isinstance(layout, str)
    return Prepared(plan, layout.leaves[0], text)
