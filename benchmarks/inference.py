"""Preparing the images of requests: throughput, CPU time, and latency under load.

JPEGs of 500 x 375 pixels from five clients, as in DLBooster §5.3; clients are threads of the
serving process. For throughput each has a fixed number of requests open. For latency requests come
at times of a Poisson process, answered or not, and a latency counts from that time.
"""

from __future__ import annotations

import argparse
import io
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import simplejpeg
import torch
from PIL import Image

from benchmarks.preparers import OURS, PREPARERS, THREADS, Preparer, native_run, with_pillow
from benchmarks.quiet import Quiet
from benchmarks.study import parser_of, publish
from fusionloader.addons.inference import Preprocessor
from fusionloader.cli.dead_leaves import CLASSES, paint
from fusionloader.cli.measure.contenders import dali_is_installed
from fusionloader.cli.measure.processes import cpu_between, read_cpu, wait_until_idle
from fusionloader.cli.progress import Progress

WIDTH, HEIGHT = 500, 375
LOAD = 0.8  # of a contender's own throughput, and of the thread pool's
_WARM_UP = 0.5  # seconds of a load that are not counted
_GAP = 0.02  # seconds between requests at low load

HEADER = (
    "contender", "images/s", "ratio", "one open each", "CPU ms", "alone ms", "added ms",
    "p50 own", "p99 own", "p50 same", "p99 same",
)  # fmt: skip


def encoded_images(count: int) -> list[bytes]:
    """Returns JPEGs like photographs, the same for the same count."""
    found = []
    for number in range(count):
        rng = np.random.default_rng([20170424, number])
        pixels = paint(number % CLASSES, WIDTH, HEIGHT, rng)
        file = io.BytesIO()
        quality = int(rng.integers(88, 92))
        Image.fromarray(pixels).save(file, "JPEG", quality=quality, subsampling="4:2:0")
        found.append(file.getvalue())
    return found


@dataclass(frozen=True, slots=True)
class Load:
    """The clients and their images."""

    images: Sequence[bytes]
    clients: int
    seconds: float

    def closed(self, preparer: Preparer | Preprocessor, open_requests: int) -> tuple[float, float]:
        """Keeps requests open; returns images a second, and CPU milliseconds of an image."""
        counting, done = threading.Event(), threading.Event()
        counts = [0] * self.clients

        def client(number: int) -> None:
            waiting: deque[Future[Any]] = deque()
            turn = number
            while not done.is_set():
                while len(waiting) < open_requests:
                    waiting.append(preparer.submit(self.images[turn % len(self.images)]))
                    turn += self.clients
                waiting.popleft().result()
                counts[number] += counting.is_set()
            wait(waiting)

        with ThreadPoolExecutor(self.clients) as threads:
            running = [threads.submit(client, number) for number in range(self.clients)]
            time.sleep(_WARM_UP)
            cpu, began = read_cpu(), time.perf_counter()
            counting.set()
            time.sleep(self.seconds)
            counting.clear()
            spent, taken = sum(cpu_between(cpu, read_cpu())), time.perf_counter() - began
            done.set()
            for each in running:
                each.result()
        return sum(counts) / taken, 1e3 * spent / sum(counts)

    def open(self, preparer: Preparer | Preprocessor, rate: float) -> list[float]:
        """Sends so many images a second; returns the latencies of all in milliseconds."""
        latencies: list[list[float]] = [[] for _ in range(self.clients)]
        began = time.perf_counter() + 0.01

        def client(number: int) -> None:
            rng = np.random.default_rng([7, number])
            due, turn, sent = began, number, []
            while True:
                due += rng.exponential(self.clients / rate)
                if due > began + _WARM_UP + self.seconds:
                    break
                time.sleep(max(0.0, due - time.perf_counter()))
                future = preparer.submit(self.images[turn % len(self.images)])
                if due > began + _WARM_UP:
                    future.add_done_callback(noted(latencies[number], due))
                sent.append(future)
                turn += self.clients
                while sent and sent[0].done():
                    sent.pop(0).result()  # nothing of a prepared image is kept
            for future in sent:
                future.result()

        with ThreadPoolExecutor(self.clients) as threads:
            for each in [threads.submit(client, number) for number in range(self.clients)]:
                each.result()
        return [each for found in latencies for each in found]


def noted(latencies: list[float], due: float) -> Callable[[Future[Any]], None]:
    """Returns what notes the milliseconds from ``due`` to a future's end."""
    return lambda _: latencies.append(1e3 * (time.perf_counter() - due))


def alone(preparer: Preparer | Preprocessor, images: Sequence[bytes]) -> tuple[float, float]:
    """Sends one image at a time, with gaps; returns milliseconds, and those above the plan alone.

    The plan runs natively on the same bytes in this thread, after a gap of the same length.
    """
    run, found, added = native_run(), [], []
    for image in images:
        seconds = []
        for prepare in (run, lambda image: preparer.submit(image).result()):
            time.sleep(_GAP)
            began = time.perf_counter()
            prepare(image)
            seconds.append(time.perf_counter() - began)
        found.append(1e3 * seconds[1])
        added.append(1e3 * (seconds[1] - seconds[0]))
    return median(found), median(added)


def check_pixels(preparer: Preparer | Preprocessor, images: Sequence[bytes]) -> None:
    """Exits unless the pixels are those of Pillow and torchvision."""
    for image in images:
        if not np.array_equal(preparer.submit(image).result(), with_pillow(image)):
            raise SystemExit("inference: the pixels are not Pillow's")


def decoding_ms(images: Sequence[bytes]) -> float:
    """Returns milliseconds of one core for an image by libjpeg-turbo alone."""
    began = time.thread_time()
    for image in images:
        simplejpeg.decode_jpeg(image)
    return 1e3 * (time.thread_time() - began) / len(images)


@dataclass(frozen=True, slots=True)
class Round:
    """What a round has measured of a contender; latencies as median and p99, in milliseconds."""

    rate: float
    one_open: float
    cpu_ms: float
    alone_ms: float
    added_ms: float
    own: tuple[float, float]  # at LOAD of its own rate
    same: tuple[float, float]  # at LOAD of the thread pool's


def measure(
    preparer: Preparer | Preprocessor, load: Load, open_requests: int, same: float
) -> Round:
    """Goes through a round; ``same`` is the thread pool's rate, 0 for itself."""
    rate, cpu_ms = load.closed(preparer, open_requests)
    one_open, _ = load.closed(preparer, 1)
    alone_ms, added_ms = alone(preparer, load.images[:40])
    own = percentiles(load.open(preparer, LOAD * rate))
    shared = percentiles(load.open(preparer, LOAD * same)) if same else own
    return Round(rate, one_open, cpu_ms, alone_ms, added_ms, own, shared)


def row(name: str, rounds: Sequence[Round], threads: Sequence[Round]) -> tuple[str, ...]:
    """Returns the medians."""

    def middle(value: Callable[[Round], float]) -> float:
        return median(map(value, rounds))

    return (
        name,
        f"{middle(lambda each: each.rate):,.0f}",
        f"{ratio(rounds, threads, lambda each: each.rate):.2f}x",
        f"{middle(lambda each: each.one_open):,.0f}",
        f"{middle(lambda each: each.cpu_ms):.2f}",
        f"{middle(lambda each: each.alone_ms):.2f}",
        f"{middle(lambda each: each.added_ms):.2f}",
        f"{middle(lambda each: each.own[0]):.1f}",
        f"{middle(lambda each: each.own[1]):.1f}",
        f"{middle(lambda each: each.same[0]):.1f}",
        f"{middle(lambda each: each.same[1]):.1f}",
    )


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """Returns the median and the 99th percentile."""
    p50, p99 = np.percentile(values, (50, 99))
    return float(p50), float(p99)


def ratio(
    rounds: Sequence[Round], others: Sequence[Round], value: Callable[[Round], float]
) -> float:
    """Returns the median of the ratios within rounds."""
    return median(value(v) / value(o) for v, o in zip(rounds, others, strict=True))


def goals(ours: Sequence[Round], threads: Sequence[Round]) -> dict[str, dict[str, Any]]:
    """Returns what was to be reached, and what was."""
    return {
        "throughput, of the thread pool's": _at_least(
            3, ratio(ours, threads, lambda each: each.rate)
        ),
        "CPU time of the thread pool's image, of ours": _at_least(
            3, ratio(threads, ours, lambda each: each.cpu_ms)
        ),
        "added latency at low load, ms": _at_most(2, median(each.added_ms for each in ours)),
        "p99 at 80 % of own throughput, of the thread pool's": _at_most(
            0.5, ratio(ours, threads, lambda each: each.own[1])
        ),
        "p99 at the same load, of the thread pool's": _at_most(
            0.5, ratio(ours, threads, lambda each: each.same[1])
        ),
    }


def _at_least(goal: float, found: float) -> dict[str, Any]:
    return {"at least": goal, "found": found, "reached": found >= goal}


def _at_most(goal: float, found: float) -> dict[str, Any]:
    return {"at most": goal, "found": found, "reached": found <= goal}


def main() -> None:
    parser: argparse.ArgumentParser = parser_of(__doc__, rounds=5)
    parser.add_argument("--files", type=int, default=200, help="images to send (200)")
    parser.add_argument("--clients", type=int, default=5, help="threads that send (5)")
    parser.add_argument("--open", type=int, default=8, help="open requests of a client (8)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load (4)")
    parser.add_argument("--patience", type=float, default=0, help="seconds to wait for quiet (0)")
    parser.add_argument("--only", help="contenders, separated by commas")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.data is not None:
        paths = sorted(path for path in options.data.glob("*/*") if path.is_file())
        images = [path.read_bytes() for path in paths[: options.files]]
    else:
        images = encoded_images(options.files)
    load = Load(images, options.clients, options.seconds)
    known = [name for name in PREPARERS if name != "dali-cpu" or dali_is_installed()]
    asked = options.only.split(",") if options.only else known
    names = [THREADS, *(name for name in asked if name != THREADS)]
    found: dict[str, list[Round]] = {name: [] for name in names}
    quiet = Quiet(options.patience)
    limits: list[float] = []
    with ExitStack() as stack, Progress("inference", len(names) * options.rounds) as progress:
        preparers = {name: stack.enter_context(PREPARERS[name](options.workers)) for name in names}
        for preparer in preparers.values():  # processes of a pool start at its first requests
            wait([preparer.submit(image) for image in images])
        if OURS in preparers:
            check_pixels(preparers[OURS], images)
        for _ in range(options.rounds):
            limits.append(decoding_ms(images))
            for name, preparer in preparers.items():
                wait_until_idle()
                same = 0.0 if name == THREADS else found[THREADS][-1].rate
                once = partial(measure, preparer, load, options.open, same)
                found[name].append(quiet.run(once)[0])
                progress.advance(note=name)
    rows = [row(name, each, found[THREADS]) for name, each in found.items()]
    mean_bytes = sum(map(len, images)) / len(images)
    reached = goals(found[OURS], found[THREADS]) if OURS in found else {}
    publish(
        options,
        HEADER,
        rows,
        measured=found,
        goals=reached,
        decoding_ms=limits,
        mean_bytes=mean_bytes,
    )
    print(f"decoding alone: {median(limits):.2f} ms of a core; {mean_bytes / 1e3:.0f} KB an image")
    for what, result in reached.items():
        print(f"{what}: {result['found']:.2f}{'' if result['reached'] else ' (missed)'}")


if __name__ == "__main__":
    main()
