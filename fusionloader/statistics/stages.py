"""The stages of making a sample, and how many samples a second each could make.

A stage's capacity is that of today's workers, if they did nothing else. It depends on the data,
the workers and the machine, and not on how fast training is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusionloader.plan.parts import FIRST_STAGE, PASSES, READ, WRITE


@dataclass(frozen=True, slots=True)
class StageStats:
    """What workers have spent on one stage.

    Attributes:
        name: ``"read"``: of files. ``"decode"``: with the resize, the flip and the conversion of a
            plan, which run together, row by row. ``"augment"``: the other stages of a plan.
            ``"python"``: user code. ``"write"``: of what it made, into the batch. ``"other"``: of
            workers without user code, what lies between, and files that Pillow decodes.
        samples: that were made meanwhile.
        seconds: wall time of the workers.
        capacity: samples per second that the workers could make if they did nothing else.
    """

    name: str
    samples: int
    seconds: float
    capacity: float


def stage_stats(
    part_seconds: Sequence[float],
    busy_seconds: float,
    samples: int,
    workers: int,
    user_code: bool,
) -> tuple[StageStats, ...]:
    """Returns the stages on which time was spent.

    Args:
        part_seconds: by part of a plan, as in ``plan/parts.py``.
        busy_seconds: that workers spent on samples, without the writing.
        samples: that were made in these.
        workers: that there are now.
        user_code: whether workers run any.
    """
    parts = [*part_seconds, *[0.0] * (FIRST_STAGE - len(part_seconds))]
    seconds = {"read": parts[READ], "decode": parts[PASSES], "augment": sum(parts[FIRST_STAGE:])}
    seconds["python" if user_code else "other"] = busy_seconds - sum(seconds.values())
    seconds["write"] = parts[WRITE]
    return tuple(
        StageStats(name, samples, spent, workers * samples / spent)
        for name, spent in seconds.items()
        if spent > 0 and samples
    )


def total_capacity(stages: Sequence[StageStats], workers: int) -> float | None:
    """Returns the samples per second that workers make in all stages; ``None`` before any."""
    per_sample = sum(stage.seconds / stage.samples for stage in stages)
    return workers / per_sample if per_sample else None
