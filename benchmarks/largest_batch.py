"""The largest batch that trains beside a GPU worker, with and without borrowed memory.

    python -m benchmarks.largest_batch --device-gib 16 --json FILE
    python -m benchmarks.largest_batch --device cpu --most 16 --grain 8 --steps 2 --json FILE

FusionFlow's Figure 9 for this machine. All but ``--device-gib`` of the device is held by this
process; on the CPU, where memory is not what ends it, ``--most`` is the largest batch tried. Each
batch is tried in a process of its own: it trains some steps in float32, during which the GPU worker
must have done samples and must not have died. The batches are multiples of ``--grain``, and a
search by halves finds the largest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch import nn
from torch.utils.data import RandomSampler

from benchmarks.study import parser_of, publish
from fusionloader import FusionLoader, GpuWorker
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.workloads import pil_dataset

CLASSES = 1000
VARIANTS: dict[str, GpuWorker | None] = {
    "without": None,
    "own": GpuWorker(sharing="temporal", memory="own"),
    "share": GpuWorker(sharing="temporal", memory="share"),
}
# Memory of the CPU is not lent.
VARIANTS_ON_CPU = {
    "without": None,
    "own": GpuWorker(device="cpu", sharing="temporal", memory="own"),
}


def variants(options: argparse.Namespace) -> dict[str, GpuWorker | None]:
    """Returns the GPU workers to try, by name."""
    return VARIANTS if options.device == "cuda" else VARIANTS_ON_CPU


def largest(fits: Callable[[int], bool], grain: int) -> int:
    """Returns the largest multiple of ``grain`` that fits, 0 if none does."""
    good, bad = 0, grain
    while fits(bad):
        good, bad = bad, 2 * bad
    while bad - good > grain:
        middle = (good + bad) // 2 // grain * grain
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good


def trial(variant: str, batch_size: int, model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Trains with that batch, in this process; returns what became of it."""
    setting, _ = setting_of(options, options.workload)
    dataset = pil_dataset(setting.folder(), setting.workload)
    sampler = RandomSampler(dataset, replacement=True, num_samples=batch_size * options.steps)
    network = getattr(torchvision.models, model)(num_classes=CLASSES).to(options.device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    gpu_worker = variants(options)[variant]
    with FusionLoader(
        dataset,
        batch_size,
        sampler=sampler,
        num_workers=options.workers,
        device=options.device,
        gpu_worker=gpu_worker,
        persistent_workers=True,
    ) as loader:
        deadline = time.monotonic() + options.patience
        while True:
            for images, targets in loader:
                loss = nn.functional.cross_entropy(network(images), targets % CLASSES)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                del images, targets, loss
            told = loader.stats().gpu_worker
            at_work = gpu_worker is None or told.get("samples", 0) > 0
            if at_work or time.monotonic() > deadline:
                break
    alive = gpu_worker is None or (told["gone"] is None and told["restarts"] == 0)
    return {"fits": at_work and alive, "gpu_worker": told}


def try_elsewhere(variant: str, batch_size: int, model: str) -> bool:
    """Whether a batch trains, in a process of its own with this one's arguments."""
    command = [sys.executable, "-m", "benchmarks.largest_batch", *sys.argv[1:]]
    command += ["--trial", variant, str(batch_size), model]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        found = {}
    print(f"{model} {variant} {batch_size}: {json.dumps(found)}", file=sys.stderr, flush=True)
    return bool(found.get("fits"))


def hold_all_but(gib: float) -> torch.Tensor:
    """Takes the rest of the device."""
    free, _ = torch.cuda.mem_get_info()
    nbytes = max(free - int(gib * 2**30), 0)
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


def main() -> None:
    parser = parser_of(__doc__, rounds=1)
    parser.set_defaults(workload="default")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--most", type=int, help="the largest batch that is tried")
    parser.add_argument("--device-gib", type=float, default=16.0, help="that training has (16)")
    parser.add_argument("--models", default="resnet18", help="torchvision's, by comma (resnet18)")
    parser.add_argument("--steps", type=int, default=6, help="of each trial (6)")
    parser.add_argument(
        "--patience", type=float, default=60.0, help="seconds for the worker's first samples (60)"
    )
    parser.add_argument("--grain", type=int, default=32, help="of the batches that are tried (32)")
    parser.add_argument("--trial", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trial:
        variant, batch_size, model = options.trial
        print(json.dumps(trial(variant, int(batch_size), model, options)), flush=True)
        os._exit(0)
    _, corpus = setting_of(options, options.workload)
    held = hold_all_but(options.device_gib) if options.device == "cuda" else None

    def fits(variant: str, batch: int, model: str) -> bool:
        too_large = options.most is not None and batch > options.most
        return not too_large and try_elsewhere(variant, batch, model)

    rows, figures = [], []
    for model in options.models.split(","):
        found = {
            variant: largest(
                lambda batch, variant=variant, model=model: fits(variant, batch, model),
                options.grain,
            )
            for variant in variants(options)
        }
        figures.append({"model": model, **found})
        ratio = found.get("share", 0) / found["own"] if found["own"] else float("nan")
        sizes = (found["without"], found["own"], found.get("share", "-"))
        rows.append((model, *map(str, sizes), f"{ratio:.2f}"))
    del held
    header = ("model", "no GPU worker", "own memory", "borrowed memory", "borrowed / own")
    publish(options, header, rows, largest_batch=figures, corpus=corpus)


if __name__ == "__main__":
    main()
