"""What keeps workers from making samples faster: cores that they do not get, or a costly stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusionloader.observe.statistics.processor_use import CoreShortage, ProcessorUse
from fusionloader.observe.statistics.stages import STAGES_IN_WORDS, StageStats, costliest_stage

HARDLY = 0.03
"""Share of its time from which on a wait of training is worth a word."""

MOSTLY = 0.5
"""Share of workers' time from which on they wait instead of computing."""


@dataclass(frozen=True, slots=True)
class WorkerLimit:
    """What workers spend their time on, or why they do not get the time.

    Attributes:
        sentence: the limit in words; follows a colon, or begins a sentence in lower case.
        stage: the costliest stage; empty where workers do not get the cores.
        shortage: why workers do not get the cores; ``None`` where they do.
    """

    sentence: str
    stage: str = ""
    shortage: CoreShortage | None = None


def worker_limit(stages: Sequence[StageStats], use: ProcessorUse | None) -> WorkerLimit | None:
    """Returns what limits workers that are busy while training waits.

    Stages are in wall time, which grows with whatever keeps a worker from running. They are looked
    at where workers got the cores that they could use.

    Args:
        stages: what workers spent on each stage.
        use: use of the processors in that time; ``None`` if it is not known.

    Returns:
        What limits them; ``None`` if neither a shortage nor a stage is known.
    """
    shortage = None if use is None else use.shortage()
    if shortage is not None:
        return WorkerLimit(shortage.sentence, shortage=shortage)
    of_workers = [stage for stage in stages if stage.name != "copy"]  # the device makes these
    if not of_workers:
        return None
    stage, share = costliest_stage(of_workers)
    what = STAGES_IN_WORDS[stage.name]
    blocked = None if use is None else use.blocked_share
    if blocked is not None and blocked >= MOSTLY:
        sentence = f"workers wait {blocked:.0%} of their time for storage or a lock, in {what}"
    elif use is None or use.cpu_seconds:
        sentence = f"workers spend {share:.0%} of their time on {what}"
    else:  # the training process makes the samples
        sentence = f"{share:.0%} of the time for samples is spent on {what}"
    return WorkerLimit(sentence, stage.name)
