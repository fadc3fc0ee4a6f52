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
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import simplejpeg
import torch
from PIL import Image

from benchmarks.preparers import OURS, PREPARERS, THREADS, Preparer, native_run
from benchmarks.study import parser_of, publish
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

    def closed(self, preparer: Preparer, open_requests: int) -> tuple[float, float]:
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

    def open(self, preparer: Preparer, rate: float) -> list[float]:
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


def alone(preparer: Preparer, images: Sequence[bytes]) -> tuple[float, float]:
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


def decoding_ms(images: Sequence[bytes]) -> float:
    """Returns milliseconds of one core for an image by libjpeg-turbo alone."""
    began = time.thread_time()
    for image in images:
        simplejpeg.decode_jpeg(image)
    return 1e3 * (time.thread_time() - began) / len(images)


@dataclass(slots=True)
class Found:
    """What rounds have measured of a contender."""

    rates: list[float] = field(default_factory=list)
    one_open: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    alone_ms: list[float] = field(default_factory=list)
    added_ms: list[float] = field(default_factory=list)
    own: list[tuple[float, float]] = field(default_factory=list)  # p50 and p99 at LOAD of its own
    same: list[tuple[float, float]] = field(default_factory=list)  # at LOAD of the thread pool's

    def measure(self, preparer: Preparer, load: Load, open_requests: int, same: float) -> None:
        """Goes through a round; ``same`` is the thread pool's rate, 0 for itself."""
        rate, cpu_ms = load.closed(preparer, open_requests)
        self.rates.append(rate)
        self.cpu_ms.append(cpu_ms)
        self.one_open.append(load.closed(preparer, 1)[0])
        alone_ms, added_ms = alone(preparer, load.images[:40])
        self.alone_ms.append(alone_ms)
        self.added_ms.append(added_ms)
        self.own.append(percentiles(load.open(preparer, LOAD * rate)))
        same_ms = load.open(preparer, LOAD * same) if same else None
        self.same.append(percentiles(same_ms) if same_ms else self.own[-1])

    def row(self, name: str, threads: Found) -> tuple[str, ...]:
        """Returns the medians."""
        return (
            name,
            f"{median(self.rates):,.0f}",
            f"{ratio(self.rates, threads.rates):.2f}x",
            f"{median(self.one_open):,.0f}",
            *(f"{median(each):.2f}" for each in (self.cpu_ms, self.alone_ms, self.added_ms)),
            *(f"{median(each):.1f}" for each in zip(*self.own, strict=True)),
            *(f"{median(each):.1f}" for each in zip(*self.same, strict=True)),
        )


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """Returns the median and the 99th percentile."""
    p50, p99 = np.percentile(values, (50, 99))
    return float(p50), float(p99)


def ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """Returns the median of the ratios within rounds."""
    return median(v / o for v, o in zip(values, others, strict=True))


def goals(ours: Found, threads: Found) -> dict[str, dict[str, Any]]:
    """Returns what was to be reached, and what was."""

    def p99(found: list[tuple[float, float]]) -> list[float]:
        return [each[1] for each in found]

    return {
        "throughput, of the thread pool's": _at_least(3, ratio(ours.rates, threads.rates)),
        "CPU time of the thread pool's image, of ours": _at_least(
            3, ratio(threads.cpu_ms, ours.cpu_ms)
        ),
        "added latency at low load, ms": _at_most(2, median(ours.added_ms)),
        "p99 at 80 % of own throughput, of the thread pool's": _at_most(
            0.5, ratio(p99(ours.own), p99(threads.own))
        ),
        "p99 at the same load, of the thread pool's": _at_most(
            0.5, ratio(p99(ours.same), p99(threads.same))
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
    found = {name: Found() for name in names}
    limits: list[float] = []
    with ExitStack() as stack, Progress("inference", len(names) * options.rounds) as progress:
        preparers = {name: stack.enter_context(PREPARERS[name](options.workers)) for name in names}
        for preparer in preparers.values():  # processes of a pool start at its first requests
            wait([preparer.submit(image) for image in images])
        for _ in range(options.rounds):
            limits.append(decoding_ms(images))
            for name, preparer in preparers.items():
                wait_until_idle()
                same = 0.0 if name == THREADS else found[THREADS].rates[-1]
                found[name].measure(preparer, load, options.open, same)
                progress.advance(note=name)
    rows = [each.row(name, found[THREADS]) for name, each in found.items()]
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
