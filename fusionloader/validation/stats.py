"""What an ``OverlappedValidation`` has counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ValidationStats:
    """Counters since it was made; durations in seconds.

    Attributes:
        started: validations that were started.
        finished: those of them that have ended, well or with an error.
        skipped: those that were not started because another one was under way.
        copies: of the model into its replica.
        copy_seconds: of the training thread, for these copies; the first makes the replica.
        waits: times that ``start`` waited for the validation before.
        wait_seconds: of the training thread, for that.
        batches: that were evaluated.
        samples: rows of these batches.
        seconds_by_part: in ``evaluate``, without its waiting for batches.
    """

    started: int
    finished: int
    skipped: int
    copies: int
    copy_seconds: float
    waits: int
    wait_seconds: float
    batches: int
    samples: int
    seconds_by_part: tuple[float, ...]
