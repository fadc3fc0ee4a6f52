"""Jobs that share their preparation against jobs that do not, and what one does to the others.

Four jobs with one worker each go through an epoch, together and each alone, interleaved: samples
delivered to all jobs per second, and CPU time. Every batch is compared with that of a job alone.
Then jobs are killed, stopped or started beside three others, again and again: the longest gap
between two batches of the others, beyond their usual one. Last, jobs start at offsets of up to more
than an epoch, and at random moments of one: samples prepared for each sample delivered, by epoch,
and the throughput of random starts from the third epoch on, together and alone.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import multiprocessing
import os
import random
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import RandomSampler

from benchmarks.study import parser_of, publish
from fusionloader import FusionLoader
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.processes import cpu_between, read_cpu
from fusionloader.cli.measure.report import announce
from fusionloader.cli.measure.workloads import pil_dataset

WAYS = ("together", "alone")
EVENTS = ("nothing", "kill", "pause", "join")
OFFSETS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.5)  # of an epoch, of the last job that starts
EPOCHS = 5  # of each job that starts at an offset
STEADY = 2  # number of the epoch from which on jobs of random starts are compared
SETTLED = 0.8  # seconds from the first batch to the event
WATCHED = 0.7  # seconds behind it
FEWEST = 4  # batches before the event that show a job's usual gap
ENDLESS = 1 << 20  # samples of an epoch in which something happens
FORK = multiprocessing.get_context("fork")


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, rounds=7)
    parser.add_argument("--jobs", type=int, default=4, help="that share (4)")
    parser.add_argument("--trials", type=int, default=50, help="of each event (50)")
    parser.add_argument("--starts", type=int, default=3, help="of jobs at each offset (3)")
    parser.add_argument("--random-starts", type=int, default=3, help="of jobs within an epoch (3)")
    parser.set_defaults(workers=1)
    return parser.parse_args()


@dataclass(frozen=True, slots=True)
class Epoch:
    """When it began and ended by the machine's clock, its samples, and digests of its batches."""

    began: float
    ended: float
    samples: int
    digests: tuple[str, ...]
    times: tuple[float, ...]
    stats: str


class Job:
    """A process with a loader that shares and one that does not, which does as it is told."""

    def __init__(self, options: argparse.Namespace, folder: Path, word: str) -> None:
        self._pipe, end = FORK.Pipe()
        self._process = FORK.Process(target=_serve, args=(end, options, folder, word), daemon=False)
        self._process.start()
        end.close()

    def tell(self, *command: object) -> None:
        """Sends a command."""
        self._pipe.send(command)

    def answer(self) -> Any:
        """Waits for the answer to a command."""
        return self._pipe.recv()

    def signal(self, number: int, workers: list[int]) -> None:
        """Sends a signal to the training process and its workers."""
        for pid in (self._process.pid, *workers):
            os.kill(pid, number)

    def end(self) -> None:
        """Kills the process; its workers end by themselves."""
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection, options: argparse.Namespace, folder: Path, word: str) -> None:
    torch.set_num_threads(1)
    dataset = pil_dataset(folder, "default")
    made: dict[str, Any] = {}

    def loader_of(way: str, endless: bool) -> Any:
        key = f"{way}{endless}"
        if key not in made:
            generator = torch.Generator()
            many = RandomSampler(dataset, True, ENDLESS, generator) if endless else None
            made[key] = FusionLoader(
                dataset,
                options.batch_size,
                shuffle=None if endless else True,
                sampler=many,
                num_workers=options.workers,
                persistent_workers=True,
                generator=generator,
                seed=0,
                share=word if way == "together" else None,
            )
        return made[key]

    while True:
        command, *what = pipe.recv()
        if command == "epochs":
            pipe.send(_epochs(loader_of(what[0], False)))
        elif command == "epoch":
            pipe.send(_epoch(loader_of(what[0], False), *what[1:]))
        else:
            _run(pipe, loader_of("together", True))


def _epoch(loader: Any, number: int, digest: bool) -> Epoch:
    """Goes through an epoch as fast as batches come."""
    loader.generator.manual_seed(number)
    loader.set_epoch(number)
    began, samples, digests = time.monotonic(), 0, []
    for images, targets in loader:
        samples += len(targets)
        if digest:
            digests.append(hashlib.blake2b(images.numpy().tobytes()).hexdigest())
    stats = loader.explain().splitlines()[-2]
    return Epoch(began, time.monotonic(), samples, tuple(digests), (), stats)


def _epochs(loader: Any) -> list[tuple[float, int, int]]:
    """Returns when each epoch ended, and the samples delivered and made here until then.

    Workers have made more samples than that for their job, if they have made those of others.
    """
    found, samples = [], 0
    for number in range(EPOCHS):
        samples += _epoch(loader, number, digest=False).samples
        made = sum(worker.samples for worker in loader.stats().workers)
        found.append((time.monotonic(), samples, made))
    return found


def _run(pipe: Connection, loader: Any) -> None:
    """Takes batches until it is told to stop; names its workers at the first, then all times."""
    loader.generator.manual_seed(0)
    loader.set_epoch(0)
    times: list[float] = []
    for _ in loader:
        times.append(time.monotonic())
        if len(times) == 1:
            pipe.send([worker.pid for worker in loader._iterator._workers])
        if pipe.poll():
            pipe.recv()
            break
    pipe.send((times, loader.stats().shared_prep))


# ---- throughput ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Round:
    """Samples per second of all jobs together, and CPU seconds per 1,000 of them."""

    rate: float
    cpu: float
    stats: str


def measure(jobs: list[Job], way: str, number: int, digest: bool = False) -> Round | set[Any]:
    """Has all jobs go through an epoch; returns what it took, or the digests that they found."""
    before = read_cpu()
    for job in jobs:
        job.tell("epoch", way, number, digest)
    epochs = [job.answer() for job in jobs]
    if digest:
        return {epoch.digests for epoch in epochs}
    seconds = max(epoch.ended for epoch in epochs) - min(epoch.began for epoch in epochs)
    samples = sum(epoch.samples for epoch in epochs)
    cpu = sum(cpu_between(before, read_cpu()))
    return Round(samples / seconds, cpu / samples * 1000, epochs[0].stats)


def throughput(options: argparse.Namespace, folder: Path) -> dict[str, list[Round]]:
    jobs = [Job(options, folder, f"study-{os.getpid()}") for _ in range(options.jobs)]
    rounds: dict[str, list[Round]] = {way: [] for way in WAYS}
    try:
        for number in range(2):  # warms up, and compares
            found = [measure(jobs, way, number, digest=True) for way in WAYS]
            assert found[0] == found[1] and len(found[0]) == 1, "batches differ"
        for number in range(2, 2 + options.rounds):
            for way in WAYS:
                rounds[way].append(measure(jobs, way, number))
    finally:
        for job in jobs:
            job.end()
    return rounds


# ---- gaps ---------------------------------------------------------------------------------------


def gap_of(event: str, options: argparse.Namespace, folder: Path, word: str) -> float | None:
    """Returns the longest gap of the others behind an event, less their usual one, in seconds.

    ``None`` if the machine was too busy for them to show a usual one.
    """
    count = options.jobs - (event == "join")
    jobs = [Job(options, folder, word) for _ in range(count)]
    workers: list[list[int]] = []
    try:
        for job in jobs:
            job.tell("run")
        workers += [job.answer() for job in jobs]
        time.sleep(SETTLED)
        victim, others = jobs[-1], jobs[:-1] if event in ("kill", "pause") else list(jobs)
        now = time.monotonic()
        if event == "join":
            jobs.append(Job(options, folder, word))
            jobs[-1].tell("run")
        elif event != "nothing":
            victim.signal(signal.SIGKILL if event == "kill" else signal.SIGSTOP, workers[-1])
        time.sleep(WATCHED)
        found = [_beyond_usual(job, now) for job in others]
        seconds = [each for each in found if each is not None]
        return max(seconds) if len(seconds) == len(found) else None
    finally:
        for job in jobs:
            job.end()
        for pid in itertools.chain.from_iterable(workers):  # a stopped one would stay
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _beyond_usual(job: Job, event: float) -> float | None:
    job.tell("stop")
    times, _ = job.answer()
    gaps = list(zip(times, times[1:], strict=False))
    before = [b - a for a, b in gaps if b < event]
    if len(before) < FEWEST:
        return None
    usual = statistics.median(before)
    behind = [b - a for a, b in gaps if b >= event]
    last = event + WATCHED - times[-1]  # it may have got none since
    return max(*behind, last, usual) - usual if behind else last


def gaps(options: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {event: [] for event in EVENTS}
    for trial in range(options.trials):
        for event in EVENTS:
            word = f"study-{os.getpid()}-{trial}-{event}"
            seconds = gap_of(event, options, folder, word)
            if seconds is not None:
                found[event].append(seconds)
        announce(f"trial {trial + 1} of {options.trials}")
    return found


# ---- offsets ------------------------------------------------------------------------------------


def usual_epoch(options: argparse.Namespace, folder: Path) -> float:
    """Returns the seconds of an epoch of one job alone."""
    job = Job(options, folder, f"study-{os.getpid()}")
    try:
        job.tell("epoch", "alone", 0, False)
        epoch = job.answer()
    finally:
        job.end()
    return float(epoch.ended - epoch.began)


def started(
    delays: list[float], way: str, options: argparse.Namespace, folder: Path
) -> list[list[tuple[float, int, int]]]:
    """Starts jobs one after the other, with pauses in between; returns what each had by epoch."""
    word = f"study-{os.getpid()}-{time.monotonic_ns()}"
    jobs = [Job(options, folder, word) for _ in range(len(delays) + 1)]
    try:
        for job, seconds in zip(jobs, [*delays, 0.0], strict=True):
            job.tell("epochs", way)
            time.sleep(seconds)
        return [job.answer() for job in jobs]
    finally:
        for job in jobs:
            job.end()


def made_for_each(found: list[list[tuple[float, int, int]]]) -> list[float]:
    """Returns the samples that were prepared for each sample delivered, by epoch."""
    delivered = [sum(job[epoch][1] for job in found) for epoch in range(EPOCHS)]
    made = [sum(job[epoch][2] for job in found) for epoch in range(EPOCHS)]
    return [
        (made[epoch] - made[epoch - 1] * (epoch > 0))
        / (delivered[epoch] - delivered[epoch - 1] * (epoch > 0))
        for epoch in range(EPOCHS)
    ]


def offsets(options: argparse.Namespace, folder: Path) -> dict[str, list[list[float]]]:
    found: dict[str, list[list[float]]] = {}
    for offset, _ in itertools.product(OFFSETS, range(options.starts)):
        gap = usual_epoch(options, folder) * offset / (options.jobs - 1)
        made = made_for_each(started([gap] * (options.jobs - 1), "together", options, folder))
        found.setdefault(str(offset), []).append(made)
        announce(f"offset {offset}: " + ", ".join(f"{each:.2f}" for each in made))
    return found


def steady_rate(found: list[list[tuple[float, int, int]]]) -> float:
    """Returns the samples per second of all jobs while all of them are in steady epochs."""
    return sum(
        (job[-1][1] - job[STEADY - 1][1]) / (job[-1][0] - job[STEADY - 1][0]) for job in found
    )


def random_starts(options: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    """Returns the steady rates together and alone of jobs that start at random moments."""
    found, draws = [], random.Random(0)
    for _ in range(options.random_starts):
        usual = usual_epoch(options, folder)
        moments = sorted(draws.random() * usual for _ in range(options.jobs))
        delays = [after - before for before, after in itertools.pairwise(moments)]
        rates = {way: steady_rate(started(delays, way, options, folder)) for way in WAYS}
        found.append(rates)
        announce(f"random starts: {rates['together'] / rates['alone']:.2f}")
    return found


# ---- the report ---------------------------------------------------------------------------------


def rows_of(rounds: dict[str, list[Round]], found: dict[str, list[float]]) -> list[list[str]]:
    def median(values: Any, form: Callable[[float], str]) -> str:
        return form(statistics.median(values))

    pairs = list(zip(*(rounds[way] for way in WAYS), strict=True))
    rows = [
        [f"{way}, samples/s of all jobs", median([r.rate for r in rounds[way]], "{:.0f}".format)]
        for way in WAYS
    ]
    rows.append(
        ["together over alone", median([a.rate / b.rate for a, b in pairs], "{:.2f}".format)]
    )
    rows += [
        [f"{way}, CPU s per 1,000", median([r.cpu for r in rounds[way]], "{:.3f}".format)]
        for way in WAYS
    ]
    rows += [
        [f"{event}: longest gap of others, ms", f"{statistics.median(values) * 1e3:.0f}"]
        for event, values in found.items()
    ]
    return rows


def rows_of_offsets(found: dict[str, list[list[float]]]) -> list[list[str]]:
    def text(starts: list[list[float]]) -> str:
        return ", ".join(f"{statistics.median(each):.2f}" for each in zip(*starts, strict=True))

    what = "last job {} of an epoch late: samples made for one delivered, by epoch"
    return [[what.format(offset), text(starts)] for offset, starts in found.items()]


def rows_of_starts(starts: list[dict[str, float]]) -> list[list[str]]:
    if not starts:
        return []
    ratio = statistics.median(each["together"] / each["alone"] for each in starts)
    what = "random starts, together over alone from the third epoch on"
    return [[what, f"{ratio:.2f}"]]


def main() -> None:
    options = arguments()
    folder = setting_of(options, "default")[0].root
    assert folder is not None
    rounds = throughput(options, folder)
    found = {event: values for event, values in gaps(options, folder).items() if values}
    starts = offsets(options, folder)
    at_random = random_starts(options, folder)
    figures = {way: [(r.rate, r.cpu) for r in rounds[way]] for way in WAYS}
    ratios = [a.rate / b.rate for a, b in zip(*(rounds[way] for way in WAYS), strict=True)]
    publish(
        options,
        ("", "median"),
        [*rows_of(rounds, found), *rows_of_offsets(starts), *rows_of_starts(at_random)],
        rounds=figures,
        ratios=ratios,
        gaps=found,
        offsets=starts,
        random_starts=at_random,
    )


if __name__ == "__main__":
    main()
