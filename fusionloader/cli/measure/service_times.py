"""Measures service times for the simulator: each sample's size and its CPU time in a worker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torchvision.datasets import ImageFolder

from fusionloader.cli.environment import JsonObject, provenance
from fusionloader.cli.measure.workloads import pil_dataset, pil_transform
from fusionloader.cli.progress import Progress
from fusionloader.cli.simulator.times import FORMAT
from fusionloader.transforms.executors.compiled_plan import compile_plan
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.executors.results import result_like

EXECUTORS = ("torchvision", "native")
# Guesses from before there was a GPU, which the figures in docs/observe/simulation.md use.
ASSUMED_GPU = {
    "source": "assumed",
    "note": (
        "launch: head and augment for 4 samples on DALI's CPU backend, as planned; build: Python "
        "graph and build of a pipeline (decode, resize, flip, normalise) on DALI's CPU backend, "
        "measured once on 2 cores; the others are guesses of the right order for an H200"
    ),
    "launch_milliseconds": 0.5,
    "build_milliseconds": 4.6,
    "milliseconds_per_sample": 0.12,
    "nanoseconds_per_byte": 0.6,
    "speed_beside_training": 0.5,
    "training_speed_beside": 0.75,
}
ASSUMED_MODELS = {
    "source": "assumed",
    "note": "training in bf16 at 224 px on one H200, data already on the device: guesses",
    "samples_per_second": {"ResNet-18": 8000, "ResNet-50": 3000, "ViT-B/16": 2200},
}


def measure_service_times(
    root: Path, workload: str, executor: str, samples: int, seed: int = 0
) -> JsonObject:
    """Runs samples of an image folder one by one, warm; returns the contents of the file.

    Measures CPU time of the thread, reading included, which other processes disturb least.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    dataset = pil_dataset(root, workload)
    order = torch.randperm(len(dataset))[:samples].tolist()
    load = _native(dataset, workload, seed) if executor == "native" else dataset.__getitem__
    for index in order[:50]:
        load(index)
    sizes, milliseconds = [], []
    with Progress(f"{executor} {workload}", len(order)) as progress:
        for index in order:
            nbytes = Path(dataset.samples[index][0]).stat().st_size
            Path(dataset.samples[index][0]).read_bytes()  # into the file cache
            started = time.thread_time_ns()
            load(index)
            milliseconds.append(round((time.thread_time_ns() - started) / 1e6, 4))
            sizes.append(nbytes)
            progress.advance()
    note = (
        f"CPU time of a worker, {executor}, workload {workload}, one sample at a time, warm files"
    )
    return {
        "format": FORMAT,
        **provenance(),
        "gpu": ASSUMED_GPU,
        "models": ASSUMED_MODELS,
        "cpu": {
            "source": "measured",
            "note": note,
            "executor": executor,
            "workload": workload,
            "bytes": sizes,
            "milliseconds": milliseconds,
        },
    }


def _native(dataset: ImageFolder, workload: str, seed: int) -> Callable[[int], None]:
    """Returns a function that processes a sample as a native worker does."""
    plan = compile_plan(pil_transform(workload)).plan
    executor = make_executor(plan)
    out: Any = result_like(plan).view(torch.uint8).numpy().reshape(-1)

    def load(index: int) -> None:
        encoded = Path(dataset.samples[index][0]).read_bytes()
        executor.run(encoded, seed, 0, index, 0, out)

    return load


def write_service_times(found: JsonObject, path: Path) -> None:
    """Writes the file, a line for each part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"  {json.dumps(name)}: {json.dumps(part)}" for name, part in found.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
