"""A compiled transform: its plan, its tail in Python, and a line for each of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from fusionloader.transforms.plan.arguments import Transform
from fusionloader.transforms.plan.parts import PASSES
from fusionloader.transforms.plan.stages import Plan

DECODING = "decode"  # stage of a note: what runs row by row with it is counted with it


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
            error.add_note(f"Transform: {text_of(transform)}")
        raise


def text_of(step: Transform) -> str:
    try:
        text = " ".join(repr(step).split())
    except Exception:  # the user's __repr__
        text = f"<{type(step).__name__}>"
    return text if len(text) <= 100 else text[:97] + "..."
