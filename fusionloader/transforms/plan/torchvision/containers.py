"""torchvision's random containers to stages: what they hold has to be compiled whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusionloader.transforms.plan.arguments import Context, Converter, NotCompiled, Transform
from fusionloader.transforms.plan.stages import Fixed, RandomApply, RandomChoice, RandomOrder, Stage

# Compiles what a container holds; raises NotCompiled where something is not compiled.
CompileAll = Callable[[Sequence[Transform], Context], tuple[Stage, ...]]


def converters(compile_all: CompileAll) -> dict[type, Converter]:
    """Returns a function from transform and ``Context`` to stage for every class known here."""
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    def apply(step: Transform, context: Context) -> Stage:
        return RandomApply(float(step.p), compile_all(list(step.transforms), context.inside()))

    def choice(step: Transform, context: Context) -> Stage:
        branches = tuple(compile_all([inner], context.inside()) for inner in step.transforms)
        weights = (1.0,) * len(branches) if step.p is None else tuple(map(float, step.p))
        if len(weights) != len(branches) or min(weights) < 0 or sum(weights) <= 0:
            raise NotCompiled(f"p={step.p!r}")
        return RandomChoice(branches, weights)

    def order(step: Transform, context: Context) -> Stage:
        inside = context.inside()
        return RandomOrder(tuple(compile_all([inner], inside) for inner in step.transforms))

    made = {"RandomApply": apply, "RandomChoice": choice, "RandomOrder": order}
    return {getattr(module, name): make for module in (v1, v2) for name, make in made.items()}


def makes_grey(stage: Stage) -> bool:
    """Whether the stage always makes a grey image."""
    return isinstance(stage, Fixed) and stage.operation == ("grayscale",)
