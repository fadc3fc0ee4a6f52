"""Augmentation on the device without a GPU worker: ``GpuWorker(decoder="workers")``."""

from __future__ import annotations

from fusionloader.data.sources.datasets import Compiled
from fusionloader.engine.manager.participant import Participant
from fusionloader.observe.statistics.loader_statistics import Statistics
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.transforms.executors.device.nvrtc import why_missing
from fusionloader.transforms.executors.device.split import split_plan
from fusionloader.transforms.plan.stages import Plan, SplitPlan


def split_for(options: LoaderOptions, compiled: Compiled | None) -> SplitPlan | str:
    """Returns the plan of a loader's CPU workers, with what is left to the device, or why not."""
    plan = find_whole_plan(compiled)
    if isinstance(plan, str):
        return plan
    if options.remote is not None:
        return "remote workers make whole samples"
    split = split_plan(plan)
    return split if isinstance(split, str) else why_missing() or split


def find_whole_plan(compiled: Compiled | None) -> Plan | str:
    """Returns the plan that makes all samples of a dataset as a whole, or why there is none."""
    if compiled is None or compiled.plan is None:
        return "the dataset's samples are made in Python"
    if compiled.parts:
        return "the parts of the dataset have a plan each"
    if not compiled.complete:
        return "a part of the transforms runs in Python"
    return compiled.plan


class DeviceAugmentation(Participant):
    """Counts the samples that the device augments as they are delivered."""

    kind = "gpu"

    def __init__(self) -> None:
        self._samples = 0

    def delivered(self, samples: int, backlog: int, ready: int) -> None:
        self._samples += samples

    def record(self, statistics: Statistics) -> None:
        statistics.gpu_worker = {
            "mode": "delivery",
            "profiling": False,
            "decoder": "workers",
            "samples": self._samples,
            "gone": None,
        }
