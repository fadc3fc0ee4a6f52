"""The parts and flavours of the GPU worker's tasks on DALI's CPU backend: what each costs."""

from __future__ import annotations

import argparse
import io
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from benchmarks.study import publish
from fusionloader import CompiledPlan, compile_plan
from fusionloader.cli.dead_leaves import paint
from fusionloader.executors.device.memory import Memory, allocate_on_host
from fusionloader.executors.device.task import rows_in
from fusionloader.plan.operations import Operation

BATCHES = (4, 16, 64)
SIDE = 224
# Pixel work is next to nothing: what is left is the cost of a run.
TINY = 8
# Different draws, so that batches have different operations.
DRAWS = 24

Drawn = list[list[Operation]]
# Does one batch of so many samples, with the draw of that number.
Work = Callable[[int, int], None]
# Builds a flavour whose inputs are prepared.
Build = Callable[[], Work]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a flavour costs: milliseconds of CPU of all threads, but for the build's of time."""

    build_ms: float
    memory_mb: float
    threads: int
    run_ms: list[float]
    sample_ms: list[float]


def head(side: int) -> Build:
    """Decode, resize and mirror; a tiny file for a tiny side."""
    from fusionloader.executors.dali.head import DaliHead
    from fusionloader.executors.dali.head_steps import head_of

    sizes = _sizes(side == SIDE)
    files = [_jpeg(width, height) for width, height in sizes]
    draws = _head_draws(side)

    def build() -> Work:
        made = DaliHead(None, max(BATCHES))

        def work(batch: int, draw: int) -> None:
            encoded, steps = [], []
            for sample in range(batch):
                place = sample % len(files)
                encoded.append(files[place])
                steps.append(head_of(draws[draw][sample][place], *sizes[place])[0])
            made.run(encoded, steps)

        return work

    return build


def families(side: int) -> Build:
    """One pipeline per op family; RandAugment's operations."""
    from fusionloader.executors.dali.families.tasks import FamilyTasks

    return _augmentation(lambda: FamilyTasks(None, max(BATCHES), side), side)


def combinations(side: int) -> Build:
    """One pipeline per ordered pair of RandAugment's operations."""
    from benchmarks.dali_combinations import CombinationTasks

    return _augmentation(lambda: CombinationTasks(None, max(BATCHES), side), side)


def conversion(side: int) -> Build:
    """To normalised float32, channels first, in the rows of a batch."""
    from torchvision import transforms

    from fusionloader.executors.dali.families.conversion import Conversion
    from fusionloader.executors.dali.task import Backend

    transform = transforms.Compose(
        [
            transforms.Resize((side, side)),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    convert = compile_plan(transform).plan.convert
    assert convert is not None
    images = list(_images(side))
    out = np.zeros((max(BATCHES), 3, side, side), np.float32)

    def build() -> Work:
        made = Conversion(Backend(None, max(BATCHES)), convert, (side, side, 3))
        return lambda batch, draw: made.write(images[:batch], out, ())

    return build


def fused(side: int) -> Build:
    """RandAugment's operations, the conversion and the write into the rows, by the fused kernel."""
    from fusionloader.executors.device.fused_augment import FusedAugment
    from fusionloader.executors.device.launchers import HostLauncher

    compiled = _whole(side)
    draws: list[Drawn] = [
        [compiled.draw(side, side, epoch=draw, index=index)[2:] for index in range(max(BATCHES))]
        for draw in range(DRAWS)
    ]
    images, rows = list(_images(side)), _rows(side)

    def build() -> Work:
        made = FusedAugment(compiled.plan, HostLauncher())
        return lambda batch, draw: _check(
            made.run(images[:batch], draws[draw][:batch], rows[:batch])
        )

    return build


def whole(side: int) -> Build:
    """From encoded bytes to rows of the batch, as the GPU worker does it: draw, head and fused."""
    from fusionloader.executors.device.make_task import HeadOptions, make_task
    from fusionloader.executors.device.task import EncodedSample

    files = [_jpeg(width, height) for width, height in _sizes(side == SIDE)]
    compiled, rows = _whole(side), _rows(side)

    def build() -> Work:
        task = make_task(compiled.plan, None, "fused", max(BATCHES), HeadOptions(hw_decoder_load=0))

        def work(batch: int, draw: int) -> None:
            samples = [
                EncodedSample(files[n % len(files)], 0, draw, n, 0, 0, rows[n], n)
                for n in range(batch)
            ]
            _check(task.run(samples))

        return work

    return build


def _check(failed: Sequence[str | None]) -> None:
    if any(failed):
        raise RuntimeError(f"a sample was not done: {failed}")


def _rows(side: int) -> list[Memory]:
    count = max(BATCHES)
    return rows_in(allocate_on_host(count * 3 * side * side * 4), count)


def _whole(side: int) -> CompiledPlan:
    from torchvision import transforms

    steps = [
        transforms.RandomResizedCrop(side),
        transforms.RandAugment(2, 9),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
    return compile_plan(transforms.Compose(steps))


# For a side of images each prepares inputs and returns what builds.
FLAVOURS: dict[str, Callable[[int], Build]] = {
    "head": head,
    "families": families,
    "combinations": combinations,
    "conversion": conversion,
    "fused": fused,
    "whole": whole,
}


def cost_of(name: str, rounds: int) -> Cost:
    """Builds and runs a flavour in this process, which should be a fresh one."""
    _first_pipeline()
    process = psutil.Process()
    build_tiny, build = FLAVOURS[name](TINY), FLAVOURS[name](SIDE)
    tiny = build_tiny()
    run_ms = [_least(tiny, batch, 10 * rounds) for batch in BATCHES]
    del tiny
    memory, threads = process.memory_info().rss, process.num_threads()
    begin = time.perf_counter()
    work = build()
    build_ms = (time.perf_counter() - begin) * 1000
    threads = process.num_threads() - threads
    sample_ms = [_least(work, batch, rounds) / batch for batch in BATCHES]
    memory_mb = (process.memory_info().rss - memory) / 2**20
    return Cost(build_ms, memory_mb, threads, run_ms, sample_ms)


def _least(work: Work, batch: int, rounds: int) -> float:
    """Milliseconds of CPU a batch: each draw's best round, and of these the mean."""
    best = np.full(DRAWS, np.inf)
    for _ in range(rounds + 1):  # the first is to warm up
        for draw in range(DRAWS):
            begin = time.process_time()
            work(batch, draw)
            best[draw] = min(best[draw], (time.process_time() - begin) * 1000)
    return float(best.mean())


def _augmentation(make: Callable[[], Any], side: int) -> Build:
    from torchvision.transforms import RandAugment

    images = list(_images(side))
    policy = compile_plan(RandAugment(2, 9))
    draws: list[Drawn] = [
        [policy.draw(side, side, epoch=draw, index=index) for index in range(max(BATCHES))]
        for draw in range(DRAWS)
    ]

    def build() -> Work:
        made = make()
        return lambda batch, draw: made.augment(images[:batch], draws[draw][:batch])

    return build


def _head_draws(side: int) -> list[list[Drawn]]:
    from torchvision import transforms

    plan = compile_plan(
        transforms.Compose([transforms.RandomResizedCrop(side), transforms.RandomHorizontalFlip()])
    )
    sizes = _sizes(side == SIDE)
    return [
        [
            [plan.draw(*size, epoch=draw, index=index) for size in sizes]
            for index in range(max(BATCHES))
        ]
        for draw in range(DRAWS)
    ]


def _first_pipeline() -> None:
    """What DALI does once in a process, with the first pipeline."""
    from fusionloader.executors.dali.families.family import families as known
    from fusionloader.executors.dali.families.family import task_of
    from fusionloader.executors.dali.task import Backend

    task = task_of(known(3)["autocontrast"], Backend())
    task.build()
    task.run([np.zeros((4, 4, 3), np.uint8)], [()])


def _sizes(big: bool) -> list[tuple[int, int]]:
    return [(500, 375), (375, 500), (500, 333), (640, 480)] if big else [(16, 16)]


def _jpeg(width: int, height: int) -> bytes:
    file = io.BytesIO()
    painted = paint(7, width, height, np.random.default_rng(width))
    Image.fromarray(painted).save(file, "JPEG", quality=92)
    return file.getvalue()


def _images(side: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    distinct = np.stack([paint(place, side, side, rng) for place in range(8)])
    return np.tile(distinct, (max(BATCHES) // 8, 1, 1, 1))


def _in_fresh_process(name: str, rounds: int) -> Cost:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(cost_of, (name, rounds))


def _row(name: str, cost: Cost) -> list[str]:
    return [
        name,
        f"{cost.build_ms:.0f}",
        f"{cost.memory_mb:.0f}",
        str(cost.threads),
        " / ".join(f"{value:.2f}" for value in cost.run_ms),
        " / ".join(f"{value:.2f}" for value in cost.sample_ms),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of which the best counts (5)")
    parser.add_argument("--flavours", nargs="*", default=list(FLAVOURS), choices=FLAVOURS)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args(arguments)
    costs = {name: _in_fresh_process(name, options.rounds) for name in options.flavours}
    header = ("flavour", "build ms", "memory MB", "threads", "run ms", "ms a sample")
    rows = [_row(name, cost) for name, cost in costs.items()]
    publish(options, header, rows, costs={name: asdict(cost) for name, cost in costs.items()})


if __name__ == "__main__":
    main()
