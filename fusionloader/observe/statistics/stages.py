"""The stages of making a sample, and how many samples a second each could make.

A stage's capacity is that of today's workers, if they did nothing else. It depends on the data,
the workers and the machine, and not on how fast training is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusionloader.transforms.plan.parts import FIRST_STAGE, PASSES, READ, WRITE

STAGES_IN_WORDS = {
    "read": "reading files",
    "decode": "decoding",
    "augment": "augmentation",
    "python": "the dataset's own Python code",
    "write": "writing into batches",
    "other": "what is none of the stages",
    "copy": "copies to the device",
}


@dataclass(frozen=True, slots=True)
class StageStats:
    """What workers have spent on one stage.

    Attributes:
        name: ``"read"``: of files. ``"decode"``: with the resize, the flip and the conversion of a
            plan, which run together, row by row. ``"augment"``: the other stages of a plan.
            ``"python"``: user code. ``"write"``: of what it made, into the batch. ``"other"``: of
            workers without user code, what lies between, and files that Pillow decodes.
            ``"copy"``: to a CUDA device, which does it beside everything else.
        samples: number of samples made in that time.
        seconds: wall time of the workers; of copies the device's time.
        capacity: samples per second, if nothing else was done.
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
    copy_seconds: float,
) -> tuple[StageStats, ...]:
    """Returns the stages on which time was spent.

    Args:
        part_seconds: seconds by part of a plan, as in ``transforms/plan/parts.py``.
        busy_seconds: time that workers spent making samples, without writing them, in seconds.
        samples: number of samples made in these seconds.
        workers: present number of workers.
        user_code: whether workers run user code.
        copy_seconds: time that the device spent on copies, in seconds.
    """
    parts = [*part_seconds, *[0.0] * (FIRST_STAGE - len(part_seconds))]
    seconds = {"read": parts[READ], "decode": parts[PASSES], "augment": sum(parts[FIRST_STAGE:])}
    seconds["python" if user_code else "other"] = busy_seconds - sum(seconds.values())
    seconds["write"] = parts[WRITE]
    return make_stages(seconds, samples, workers) + make_stages({"copy": copy_seconds}, samples, 1)


def make_stages(seconds: Mapping[str, float], samples: int, at_once: int) -> tuple[StageStats, ...]:
    """Returns the stages on which time was spent, with capacities of so many workers."""
    return tuple(
        StageStats(name, samples, spent, at_once * samples / spent)
        for name, spent in seconds.items()
        if spent > 0 and samples
    )


def costliest_stage(stages: Sequence[StageStats]) -> tuple[StageStats, float]:
    """Returns the stage on which workers spend most, and its fraction of their time.

    Raises:
        ValueError: there are no stages.
    """
    found = max(stages, key=lambda stage: stage.seconds)
    return found, found.seconds / sum(stage.seconds for stage in stages)


def total_capacity(stages: Sequence[StageStats]) -> float | None:
    """Returns the samples per second that come through all stages; ``None`` before any.

    A worker's stages follow one another. Copies go on beside them.
    """
    copies = [stage.capacity for stage in stages if stage.name == "copy"]
    per_sample = sum(1 / stage.capacity for stage in stages if stage.name != "copy")
    return min([1 / per_sample, *copies]) if per_sample else None
