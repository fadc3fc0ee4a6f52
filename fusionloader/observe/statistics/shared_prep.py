"""What is counted of preparation that several jobs share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SharedPrepStats:
    """A loader with ``share``; jobs are known by the pids of their training processes.

    Attributes:
        word: name of the group, the value of ``share=``.
        together: whether other jobs take part in the epoch under way, or took part in the last one.
        why_alone: why the epoch is prepared for this job alone; empty if it may be shared.
        jobs: pids of the other jobs in the epoch.
        shared_batches: mini-batches that were prepared once for this job and others.
        alone_batches: mini-batches that were prepared for this job alone.
        outside_batches: those of ``alone_batches`` that this job prepared outside the group.
        made_here: samples that this job's workers have made, for this job or for others.
        made_elsewhere: samples that those of other jobs have made for this one.
        waited_for: seconds that this job has waited for others to take their mini-batches.
    """

    word: str
    together: bool
    why_alone: str
    jobs: tuple[int, ...]
    shared_batches: int
    alone_batches: int
    outside_batches: int
    made_here: int
    made_elsewhere: int
    waited_for: Mapping[int, float]

    @property
    def waited_seconds(self) -> float:
        """That this job has waited for all others together."""
        return sum(self.waited_for.values())

    def explain(self) -> str:
        """Returns a line of what became of it."""
        text = f'prepared together under the word "{self.word}"'
        if delivered := self.shared_batches + self.alone_batches:
            text += f": {self.shared_batches / delivered:.0%} of the mini-batches were made once "
            text += f"for several jobs, whose workers made {self.made_elsewhere} samples for this "
            text += f"one, and {self.made_here} were made here"
            text += "" if self.jobs or self.why_alone else "; no other job is in this epoch"
        if self.why_alone and self.alone_batches:
            text += f"; {self.alone_batches} mini-batches for this job alone: {self.why_alone}"
        if self.waited_for:
            pid = max(self.waited_for, key=self.waited_for.__getitem__)
            seconds = self.waited_seconds
            text += f"; waited {seconds:.1f} s for others, most for the job with pid {pid}"
        return text
