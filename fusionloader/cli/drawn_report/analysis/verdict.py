"""What limits a training, in words; the first thing that a reader sees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fusionloader.cli.drawn_report.analysis.waits import TraceWaits
from fusionloader.cli.drawn_report.analysis.words import duration, number, percent, spaced
from fusionloader.cli.drawn_report.analysis.work import KindWork, Work
from fusionloader.observe.statistics.processor_use import ProcessorUse
from fusionloader.observe.statistics.stages import STAGES_IN_WORDS, costliest_stage
from fusionloader.observe.statistics.worker_limit import HARDLY, MOSTLY, worker_limit
from fusionloader.observe.trace.timeline import CACHED, INDEXED, Timeline
from fusionloader.system.amounts import counted

_A_LITTLE = 0.10  # of training's time
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
        share: fraction of its time that training waited; ``None`` without two steps of an epoch.
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
        first = duration(float(waits.startup_seconds.sum()))
        reason = f"From iter() to the first batch {first} passed, in which workers start, too."
        return TraceVerdict(
            None, "unknown", "Too short to tell: no epoch has two steps.", (reason,)
        )
    if share < HARDLY:
        headline = f"Training's own step is the limit: it waits {percent(share)} of its time."
        return TraceVerdict(share, "good", headline, _headroom(waits, work))
    tone: Tone = "fair" if share < _A_LITTLE else "poor"
    cause = _cause(waits, work, timeline)
    why = f": {spaced(cause.why)}" if cause.why else ""
    headline = f"Training waits {percent(share)} of its time{why}."
    return TraceVerdict(share, tone, headline, cause.reasons, cause.remedy)


def _headroom(waits: TraceWaits, work: Work) -> tuple[str, ...]:
    keeps_up = "Loading keeps up; faster loading would change nothing."
    if not work.kinds or waits.training_rate is None:
        return (keeps_up,)
    return (
        f"{keeps_up} Workers could make {number(work.capacity)} samples a second, "
        f"training takes {number(waits.training_rate)} when it does not wait.",
    )


@dataclass(frozen=True, slots=True)
class _Cause:
    """Why training waits: to follow a colon, in sentences, and what would help."""

    why: str
    reasons: tuple[str, ...]
    remedy: str = ""


def _cause(waits: TraceWaits, work: Work, timeline: Timeline) -> _Cause:
    use = timeline.meta.processors
    if timeline.meta.steps_only or not waits.knows_workers:
        shortage = None if use is None else use.shortage()
        why, remedy = ("", "") if shortage is None else (shortage.sentence, shortage.remedy)
        what = f" ({timeline.meta.steps_only})" if timeline.meta.steps_only else ""
        unseen = f"No worker is seen in this trace{what}"
        return _Cause(why, (f"{unseen}: what training waits for is not known.",), remedy)
    for_workers = waits.for_workers_seconds / waits.waited_seconds
    if for_workers < 0.5:
        return _delivery(1 - for_workers)
    cpu = work.kind("cpu")
    busy = work.busy_share_of_waits(waits)
    if cpu is None or busy is None:
        return _Cause("", ("The trace has no sample that a CPU worker made: no stage is known.",))
    if busy < _BUSY:
        return _stragglers(waits, busy)
    return _workers(waits, work, timeline, cpu, busy)


def _delivery(share: float) -> _Cause:
    return _Cause(
        "batches that workers have finished are delivered late",
        (
            f"Workers are not the limit: {percent(share)} of the waiting is for delivery of "
            "batches that they had finished.",
        ),
        "Look at what the training process does between batches: copies to the device, "
        "`collate_fn`, other threads that hold Python's lock.",
    )


def _stragglers(waits: TraceWaits, busy: float) -> _Cause:
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
    return _Cause(
        "some workers finish late while others have nothing to do",
        tuple(reasons),
        "Look at the workers around the longest waits, below. More mini-batches ahead "
        "(`prefetch_factor`) bridge single late ones.",
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
) -> _Cause:
    use = timeline.meta.processors
    limit = worker_limit(cpu.stages, use)
    assert limit is not None  # there are stages
    limits = f"{percent(busy)} of the workers' time was busy while training waited for them."
    if limit.shortage is not None:
        reason = "Times of samples and stages below are those of workers that had no core."
        return _Cause(limit.sentence, (limits, reason), limit.shortage.remedy)
    stage, _ = costliest_stage(cpu.stages)
    seconds = stage.seconds / stage.samples
    reasons = [
        f"Workers limit: {limits}",
        f"The costliest part of a sample is {STAGES_IN_WORDS[stage.name]}: {duration(seconds)} of "
        f"{duration(cpu.seconds_per_sample)}.",
    ]
    remedy = _remedy(stage.name, timeline)
    if waits.training_rate is not None and waits.training_rate > work.capacity:
        needed = _workers_needed(waits.training_rate, work, cpu)
        remedy = f"{_more_workers(needed, cpu.workers, use)} {remedy}"
    return _Cause(limit.sentence, tuple(reasons), remedy)


def _more_workers(needed: int, workers: int, use: ProcessorUse | None) -> str:
    """Returns how many workers would keep up, and whether there are cores for them."""
    # What a worker takes of a core: little, where it waits for storage.
    blocked = 0.0 if use is None else use.blocked_share or 0.0
    each = ", if storage serves them all" if blocked >= MOSTLY else ", each with a core of its own"
    would = (
        f"About {counted(needed, 'worker')} instead of {workers} would keep up with training{each}"
    )
    if use is not None and needed * (1 - blocked) > use.cores:
        enough = max(workers, math.floor(use.cores / (1 - blocked)))
        return f"{would}; {_cores_are(use.cores)} enough for {enough}."
    return f"{would}."


def _cores_are(cores: float) -> str:
    return "the one core is" if cores == 1 else f"the {cores:g} cores here are"


def _workers_needed(training_rate: float, work: Work, cpu: KindWork) -> int:
    """Returns how many CPU workers make what training takes beside all other workers."""
    others = work.capacity - cpu.capacity
    return math.ceil((training_rate - others) * cpu.seconds_per_sample)
