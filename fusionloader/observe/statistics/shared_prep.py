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
        why_alone: why this job prepares the epoch outside the group; empty within it.
        jobs: pids of the other jobs in the epoch.
        shared_batches: mini-batches that came from the group.
        alone_batches: mini-batches that this job has prepared outside it.
        made_here: samples of the group that this job's workers have made.
        made_elsewhere: samples that those of other jobs have made for this one.
        waited_for: seconds that this job has waited for others to take their mini-batches.
    """

    word: str
    together: bool
    why_alone: str
    jobs: tuple[int, ...]
    shared_batches: int
    alone_batches: int
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
        if self.shared_batches:
            samples = max(self.made_here + self.made_elsewhere, 1)
            text += f": {self.made_elsewhere / samples:.0%} of the samples came from other jobs"
            text += "" if self.jobs or self.why_alone else ", of which none is in this epoch"
        if self.why_alone and self.alone_batches:
            text += f"; {self.alone_batches} mini-batches alone: {self.why_alone}"
        if self.waited_for:
            pid = max(self.waited_for, key=self.waited_for.__getitem__)
            seconds = self.waited_seconds
            text += f"; waited {seconds:.1f} s for others, most for the job with pid {pid}"
        return text
