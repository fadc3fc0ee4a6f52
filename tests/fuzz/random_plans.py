"""Plans of random stages, some with numbers that make no sense."""

from __future__ import annotations

from random import Random
from typing import Any

from support.random_operations import FILTERS, INTERPOLATIONS, fill, operation, real, whole

from fusionloader.transforms.plan import stages
from fusionloader.transforms.plan.stages import Stage

POLICY_OPS = stages.PolicyOp.__args__  # type: ignore[attr-defined]


def span(random: Random, low: float, high: float) -> tuple[float, float]:
    ends = (real(random, low, high), real(random, low, high))
    return ends if random.random() < 0.1 else (min(ends), max(ends))


def maybe(random: Random, value: Any) -> Any:
    return value if random.random() < 0.6 else None


def stage(random: Random, depth: int = 0) -> Stage:
    makers = _MAKERS if depth < 2 else _MAKERS[:-3]
    return random.choice(makers)(random, depth)


def _windows(random: Random, depth: int) -> Stage:
    height, width = whole(random, 1), whole(random, 1)
    filter = random.choice(FILTERS)
    padding = tuple(whole(random, 0, 9) for _ in range(4))
    return random.choice(
        (
            stages.RandomResizedCrop(
                height, width, span(random, 0.05, 1.2), span(random, 0.3, 3), (filter, "box")
            ),
            stages.ResizeShorterSide(height, maybe(random, whole(random, 1, 200)), filter),
            stages.Resize(height, width, filter),
            stages.CenterCrop(height, width),
            stages.RandomCrop(height, width, padding, random.random() < 0.7, fill(random)),
            stages.RandomHorizontalFlip(real(random, 0, 1)),
            stages.RandomVerticalFlip(real(random, 0, 1)),
        )
    )


def _colors(random: Random, depth: int) -> Stage:
    if random.random() < 0.5:
        return stages.ColorJitter(
            *(maybe(random, span(random, 0, 2)) for _ in range(3)),
            maybe(random, span(random, -0.5, 0.5)),
        )
    size = random.choice((1, 3, 9, whole(random)))
    return stages.GaussianBlur(size, 3, span(random, 0.1, 3))


def _warps(random: Random, depth: int) -> Stage:
    interpolation = random.choice(INTERPOLATIONS)
    centre = maybe(random, (real(random, -9, 60), real(random, -9, 60)))
    degrees, color = span(random, -200, 200), fill(random)
    return random.choice(
        (
            stages.RandomRotation(degrees, interpolation, random.random() < 0.5, centre, color),
            stages.RandomAffine(
                degrees,
                maybe(random, (real(random, 0, 1), real(random, 0, 1))),
                maybe(random, span(random, 0.2, 2)),
                maybe(random, span(random, -60, 60)),
                maybe(random, span(random, -60, 60)),
                interpolation,
                centre,
                color,
            ),
            stages.RandomPerspective(real(random, 0, 1), interpolation, color),
        )
    )


def _fixed(random: Random, depth: int) -> Stage:
    return stages.Fixed(operation(random))


def _policy(random: Random, depth: int = 0) -> stages.RandomPolicy:
    policies = tuple(
        tuple(_step(random) for _ in range(random.randint(0, 2)))
        for _ in range(random.randint(1, 4))
    )
    repeats = whole(random, 0, 3) if random.random() < 0.1 else random.randint(0, 3)
    return stages.RandomPolicy(policies, repeats, (random.choice(INTERPOLATIONS),), fill(random))


def _step(random: Random) -> stages.PolicyStep:
    source = random.choice(("listed", "normal", "uniform"))
    levels = tuple(real(random, 0, 10) for _ in range(random.choice((2, 3))))
    clip = span(random, -20, 20) if random.random() < 0.3 else (float("-inf"), float("inf"))
    magnitude = stages.Magnitude(
        levels,
        source,  # type: ignore[arg-type]
        clip,
        real(random, -1, 10),
        real(random, -1, 1),
        random.random() < 0.5,
        random.random() < 0.5,
        random.choice(("nothing", "width", "height")),  # type: ignore[arg-type]
        random.choice((0, 1, 10, whole(random))),
    )
    return stages.PolicyStep(random.choice(POLICY_OPS), real(random, 0, 1), magnitude)


def _augmix(random: Random, depth: int) -> Stage:
    width = random.choice((1, 3, whole(random, 0, 4)))
    return stages.AugMix(_policy(random), width, whole(random, -1, 3), real(random, 0.1, 2))


def _erasing(random: Random, depth: int) -> Stage:
    values = random.choice((b"", random.randbytes(3), random.randbytes(12)))
    least = random.choice((1, 1, whole(random, 0, 3)))
    return stages.RandomErasing(
        real(random, 0, 1),
        span(random, 0.02, 0.4),
        span(random, 0.3, 3),
        values,
        random.random() < 0.5,
        least,
        least + random.choice((0, 1, -1)),
    )


def _branches(random: Random, depth: int) -> tuple[tuple[Stage, ...], ...]:
    return tuple(_list(random, depth) for _ in range(random.randint(0 if depth else 1, 3)))


def _list(random: Random, depth: int) -> tuple[Stage, ...]:
    return tuple(stage(random, depth + 1) for _ in range(random.randint(0, 2)))


def _apply(random: Random, depth: int) -> Stage:
    return stages.RandomApply(real(random, 0, 1), _list(random, depth))


def _choice(random: Random, depth: int) -> Stage:
    branches = _branches(random, depth)
    return stages.RandomChoice(branches, tuple(real(random, 0, 1) for _ in branches))


def _order(random: Random, depth: int) -> Stage:
    return stages.RandomOrder(_branches(random, depth))


_MAKERS = (_windows, _windows, _windows, _colors, _warps, _fixed, _policy, _augmix, _erasing)
_MAKERS += (_apply, _choice, _order)
