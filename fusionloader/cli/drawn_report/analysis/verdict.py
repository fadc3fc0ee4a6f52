"""What limits a training, in words; the first thing that a reader sees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fusionloader.cli.drawn_report.analysis.waits import TraceWaits
from fusionloader.cli.drawn_report.analysis.words import count, duration, number, percent
from fusionloader.cli.drawn_report.analysis.work import IN_WORDS, KindWork, Work
from fusionloader.observe.statistics.stages import costliest_stage
from fusionloader.observe.trace.timeline import CACHED, INDEXED, Timeline

_HARDLY, _A_LITTLE = 0.03, 0.10  # of training's time
_BUSY = (
    0.75  # share of workers' time while training waits, from which on they are what it waits for
)
_FEW_STEPS, _MOST_OF_IT = 0.05, 0.5

_REMEDIES = {
    "read": "Files on faster storage help, or so much memory that they stay in the page cache.",
    "augment": "Fewer operations help, or a GPU worker, which takes the largest samples.",
    "python": "`loader.explain()` says which transforms are not compiled, and why.",
    "write": "Smaller samples help: a smaller crop, or a narrower dtype.",
    "other": "`loader.explain()` and `stats().pillow_samples` say what is left to Pillow.",
}
"""Code is between backticks."""

_KEPT = {CACHED: "`cache=DecodedCache(…)`", INDEXED: "`jpeg_index`"}

Tone = Literal["good", "fair", "poor", "unknown"]


@dataclass(frozen=True, slots=True)
class TraceVerdict:
    """What is to be said first.

    Attributes:
        share: of its time that training waited; ``None`` without two steps of an epoch.
        tone: how good that is.
        headline: one sentence.
        reasons: sentences: what limits, and why one can tell.
        remedy: what would help; code is between backticks. Empty where nothing need be done.
    """

    share: float | None
    tone: Tone
    headline: str
    reasons: tuple[str, ...] = ()
    remedy: str = ""


def verdict_on(waits: TraceWaits, work: Work, timeline: Timeline) -> TraceVerdict:
    """Returns the verdict on a training."""
    share = waits.share
    if share is None:
        first = duration(float(waits.first_seconds.sum()))
        reason = f"Of first batches training waited {first}, in which workers start, too."
        return TraceVerdict(
            None, "unknown", "Too short to tell: no epoch has two steps.", (reason,)
        )
    if share < _HARDLY:
        headline = f"Training hardly waits: {percent(share)} of its time."
        return TraceVerdict(share, "good", headline, _headroom(waits, work))
    tone: Tone = "fair" if share < _A_LITTLE else "poor"
    reasons, remedy = _cause(waits, work, timeline)
    return TraceVerdict(
        share, tone, f"Training waits {percent(share)} of its time.", reasons, remedy
    )


def _headroom(waits: TraceWaits, work: Work) -> tuple[str, ...]:
    keeps_up = "Loading keeps up; faster loading would change nothing."
    if not work.kinds or waits.training_rate is None:
        return (keeps_up,)
    return (
        f"{keeps_up} Workers could make {number(work.capacity)} samples a second, "
        f"training takes {number(waits.training_rate)} when it does not wait.",
    )


def _cause(waits: TraceWaits, work: Work, timeline: Timeline) -> tuple[tuple[str, ...], str]:
    """Returns what limits, and what would help."""
    if timeline.meta.steps_only or not waits.knows_workers:
        why = f" ({timeline.meta.steps_only})" if timeline.meta.steps_only else ""
        return (f"No worker is seen in this trace{why}: what training waits for is not known.",), ""
    for_workers = waits.for_workers_seconds / waits.waited_seconds
    if for_workers < 0.5:
        return _delivery(1 - for_workers)
    cpu = work.kind("cpu")
    busy = work.busy_share_of_waits(waits)
    if cpu is None or busy is None:
        return ("The trace has no sample that a CPU worker made, so no stage is known.",), ""
    if busy < _BUSY:
        return _stragglers(waits, busy)
    return _workers(waits, work, timeline, cpu, busy)


def _delivery(share: float) -> tuple[tuple[str, ...], str]:
    return (
        f"Workers are not the limit: {percent(share)} of the waiting is for delivery of batches "
        "that they had finished.",
    ), (
        "Look at what the training process does between batches: copies to the device, "
        "`collate_fn`, other threads that hold Python's lock."
    )


def _stragglers(waits: TraceWaits, busy: float) -> tuple[tuple[str, ...], str]:
    reasons = [
        f"While training waited for workers, only {percent(busy)} of the CPU workers' time was "
        "busy: some finished late while others had nothing to do."
    ]
    longest = waits.share_of_longest(_FEW_STEPS)
    if longest > _MOST_OF_IT:
        reasons.append(
            f"{percent(longest)} of the waiting is in the {percent(_FEW_STEPS)} of the steps with "
            "the longest waits."
        )
    return tuple(reasons), (
        "Look at the workers around the longest waits, below. More mini-batches ahead "
        "(`prefetch_factor`) bridge single late ones."
    )


def _remedy(stage: str, timeline: Timeline) -> str:
    if stage != "decode":
        return _REMEDIES[stage]
    used = {counter.name for counter in timeline.counters}
    unused = [text for name, text in _KEPT.items() if name not in used]
    saved = f"{' or '.join(unused)} saves decoding from the second epoch on; " if unused else ""
    return f"{saved}`decode='fast'` makes it cheaper."


def _workers(
    waits: TraceWaits, work: Work, timeline: Timeline, cpu: KindWork, busy: float
) -> tuple[tuple[str, ...], str]:
    stage, _ = costliest_stage(cpu.stages)
    seconds = stage.seconds / stage.samples
    reasons = [
        f"Workers limit: {percent(busy)} of their time was busy while training waited for them.",
        f"The costliest part of a sample is {IN_WORDS[stage.name]}: {duration(seconds)} of "
        f"{duration(cpu.seconds_per_sample)}.",
    ]
    remedy = _remedy(stage.name, timeline)
    if waits.training_rate is not None and waits.training_rate > work.capacity:
        needed = _workers_needed(waits.training_rate, work, cpu)
        remedy = (
            f"About {count(needed, 'worker')} instead of {cpu.workers} would keep up with "
            f"training, each with a core of its own. {remedy}"
        )
    return tuple(reasons), remedy


def _workers_needed(training_rate: float, work: Work, cpu: KindWork) -> int:
    """Returns how many CPU workers make what training takes beside all other workers."""
    others = work.capacity - cpu.capacity
    return math.ceil((training_rate - others) * cpu.seconds_per_sample)
