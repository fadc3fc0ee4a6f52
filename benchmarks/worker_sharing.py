"""Gain of sharing workers: two ranks by torchrun, one with samples three times as costly.

In every step both ranks take a batch and wait for each other, as for gradients. The contenders are
interleaved in the same two processes: with sharing, without, and one pool. The pool is one loader
with the workers of both ranks that makes the batches of both. Then the same with equal ranks.

Workers run a plan, or user code with --code samples (its images are deferred) or --code batches (a
collate_fn makes whole batches). The time of a comparison of datasets is measured, too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks.study import publish
from fusionloader import FusionLoader
from fusionloader.cli.corpus import ensure_corpus
from fusionloader.cli.measure.report import announce
from fusionloader.sharing.compatibility import digest_code

LIGHT, COSTLY = (500, 375), (1120, 840)
IMAGES = 64  # of each kind
WARM_UP = 6  # steps; workers start, and the prefetch window fills
PATHS = 1_281_167  # of a dataset whose comparison is timed
TRANSFORM = transforms.Compose(
    [transforms.RandomResizedCrop(96), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each contender (7)")
    parser.add_argument("--steps", type=int, default=40, help="counted in a round (40)")
    parser.add_argument("--batch-size", type=int, default=64, help="of a rank (64)")
    parser.add_argument("--workers", type=int, default=1, help="of a rank (1)")
    parser.add_argument("--code", choices=["plan", "samples", "batches"], default="plan")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--as-rank", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    return parser.parse_args()


def make_images(folder: Path) -> None:
    """Writes the same pictures in two sizes, as two classes."""
    sources = sorted(ensure_corpus(IMAGES).train.rglob("*.jpg"))[:IMAGES]
    for name, size in (("light", LIGHT), ("costly", COSTLY)):
        (folder / name).mkdir()
        for number, source in enumerate(sources):
            with Image.open(source) as image:
                resized = image.convert("RGB").resize(size, Image.Resampling.BICUBIC)
            resized.save(folder / name / f"{number:03}.jpg", quality=90)


class UserCode(Dataset[tuple[torch.Tensor, int]]):
    """The samples of a folder, made by code that no plan is compiled from."""

    def __init__(self, samples: list[tuple[str, int]]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, target = self.samples[index]
        with Image.open(path) as image:
            made: torch.Tensor = TRANSFORM(image.convert("RGB"))
        return made, target


def collate(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Collates like ``default_collate``; as a function of the user it makes batches whole."""
    images, targets = zip(*samples, strict=True)
    return torch.stack(images), torch.tensor(targets)


def comparison_seconds() -> float:
    """Returns the processor time of the digest of a dataset with many paths."""
    dataset = UserCode(
        [(f"train/n{n % 1000:08}/n{n % 1000:08}_{n}.JPEG", n % 1000) for n in range(PATHS)]
    )
    begun = time.process_time()
    digest_code(dataset, own_memory=("numpy", "torch"), with_files=True)
    return time.process_time() - begun


@dataclass(frozen=True, slots=True)
class Round:
    """Steps per second, seconds of work for a batch of this rank, the borrowed workers' share."""

    rate: float
    batch_seconds: float
    borrowed: float


class RankContenders:
    """One rank's side of the contenders."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        folder = ImageFolder(str(options.as_rank), TRANSFORM)
        self._dataset = folder if options.code == "plan" else UserCode(folder.samples)
        self._rank = dist.get_rank()
        light = folder.class_to_idx["light"]
        kinds = [target == light for _, target in folder.samples]
        self._light = [number for number, is_light in enumerate(kinds) if is_light]
        self._costly = [number for number, is_light in enumerate(kinds) if not is_light]

    def _batches(self, samples: Sequence[int]) -> list[list[int]]:
        size, steps = self._options.batch_size, WARM_UP + self._options.steps
        many = list(samples) * (size * steps // len(samples) + 1)
        return [many[step * size : (step + 1) * size] for step in range(steps)]

    def measure(self, uneven: bool, how: str) -> Round:
        """Runs one round of a contender."""
        costly = self._costly if uneven else self._light
        parts = [self._batches(self._light), self._batches(costly)]
        batches = parts[self._rank]
        workers = self._options.workers
        if how == "one pool":
            batches = [a + b for a, b in zip(*parts, strict=True)] if self._rank == 0 else []
            workers *= 2
        loader: FusionLoader[Any] = FusionLoader(
            self._dataset,
            batch_sampler=batches,
            num_workers=workers,
            collate_fn=collate if self._options.code == "batches" else None,
            seed=0,
            global_manager="all" if how == "sharing" else "off",
        )
        iterator = iter(loader)
        dist.barrier()
        begun = 0.0
        for step in range(WARM_UP + self._options.steps):
            if step == WARM_UP:
                begun = time.perf_counter()
            if batches:
                next(iterator)
            dist.barrier()
        rate = self._options.steps / (time.perf_counter() - begun)
        next(iterator, None)  # ends the epoch, after which the counters are complete
        dist.barrier()
        stats = loader.stats()
        seconds = stats.worker_seconds / max(stats.batches, 1)
        return Round(rate, seconds, stats.borrowed_samples / max(stats.samples, 1))


def as_rank(options: argparse.Namespace) -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    here = RankContenders(options)
    rates: dict[str, list[float]] = {}
    costs: list[float] = []
    borrowed: list[float] = []
    contenders = [(u, how) for u in (True, False) for how in ("sharing", "without", "one pool")]
    for number in range(options.rounds):
        for uneven, how in contenders:
            measured = here.measure(uneven, how)
            rates.setdefault(f"{'uneven' if uneven else 'equal'}, {how}", []).append(measured.rate)
            if uneven and how == "without":
                costs.append(measured.batch_seconds)
            if uneven and how == "sharing":
                borrowed.append(measured.borrowed)
        if dist.get_rank() == 0:
            announce(f"round {number + 1} of {options.rounds}")
    mine = torch.tensor([statistics.median(costs), statistics.median(borrowed)])
    of_ranks = [torch.zeros_like(mine) for _ in range(2)]
    dist.all_gather(of_ranks, mine)
    if dist.get_rank() == 0:
        found = {"cost_ratio": float(of_ranks[1][0] / of_ranks[0][0])}
        print(json.dumps({"rates": rates, **found, "borrowed": float(of_ranks[1][1])}))
    dist.destroy_process_group()


def report(options: argparse.Namespace, found: dict[str, Any]) -> None:
    rates: dict[str, list[float]] = found["rates"]
    rows = []
    for name, values in rates.items():
        base = rates[name.split(",")[0] + ", without"]
        pool = rates[name.split(",")[0] + ", one pool"]
        rows.append(
            (
                name,
                f"{statistics.median(values):.2f}",
                f"{statistics.median(a / b for a, b in zip(values, base, strict=True)):.2f}",
                f"{statistics.median(a / b for a, b in zip(values, pool, strict=True)):.2f}",
            )
        )
    print(f"uneven: a batch of rank 1 costs {found['cost_ratio']:.2f} times one of rank 0;")
    print(f"rank 0's workers make {found['borrowed']:.0%} of its samples")
    header = ("contender", "steps/s", "over without", "over one pool")
    seconds = comparison_seconds()
    print(f"a dataset of {PATHS:,} paths is compared in {seconds:.2f} s of processor time")
    publish(options, header, rows, comparison_seconds=seconds, **found)


def main() -> None:
    options = arguments()
    if options.as_rank is not None:
        as_rank(options)
        return
    with TemporaryDirectory() as folder:
        make_images(Path(folder))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "2", "-m", "benchmarks.worker_sharing", "--as-rank", folder]
        for name in ("rounds", "steps", "batch_size", "workers", "code"):
            command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    report(options, json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
