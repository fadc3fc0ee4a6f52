"""Is the true cause named first? Five trainings that wait, or do not, for one reason each.

Each is traced for `report`, asked for `stats()`, and given to `analyze`: with other processes on
the cores, in a control group with a CPU quota, with files that come slowly, with a transform that
computes for long, and with a long training step. Trainings, and the processes that take their
cores, run before others of the machine, if that is permitted: other work is not one of the causes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from benchmarks.study import parser_of, publish
from benchmarks.throttle import throttled
from fusionloader import FusionLoader
from fusionloader.cli.drawn_report.analysis.verdict import verdict_on
from fusionloader.cli.drawn_report.analysis.waits import waits_of
from fusionloader.cli.drawn_report.analysis.work import work_of
from fusionloader.observe.trace.files import read_timeline

IMAGES, BATCH, EPOCHS = 256, 16, 3
QUOTA = 0.5  # cores
STORAGE = 3e6  # bytes per second
LOOPS_PER_CORE = 2
STEP, SLOW_STEP, SLOW_TRANSFORM = 0.002, 0.2, 0.02  # seconds
HIGHEST = -20  # the priority, which only root may set

CAUSES = {
    "other processes": "other processes take the rest",
    "CPU quota": "throttled to its CPU quota",
    "slow storage": "reading files",
    "slow transform": "Python code",
    "slow step": "step is the limit",
}
"""What the first sentence has to have in it, by cause."""

# Torch's workers count nothing: what they do for a sample is not known.
OF_FACES = {
    "analyze": {"slow transform": "(python"},
    "analyze, DataLoader": {"slow transform": "workers compute", "slow storage": "for storage"},
}


class Slow:
    """A transform that computes."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, image: Any) -> Any:
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        return image


def loader() -> DataLoader[Any]:
    """Returns the loader of the case that the environment names."""
    case = json.loads(os.environ["ADVICE"])
    slow = [Slow(SLOW_TRANSFORM)] if case["cause"] == "slow transform" else []
    tensor = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    transform = v2.Compose([v2.RandomResizedCrop(224), *slow, *tensor])
    dataset = ImageFolder(case["folder"], transform)
    kind = DataLoader if case["kind"] == "DataLoader" else FusionLoader
    return kind(dataset, BATCH, shuffle=True, num_workers=case["workers"])


def step(batch: object) -> None:
    """A training step; on a device it would wait as here."""
    slow = json.loads(os.environ["ADVICE"])["cause"] == "slow step"
    time.sleep(SLOW_STEP if slow else STEP)


def train(folder: Path) -> None:
    """Trains, and prints what report and stats() say."""
    made = loader()
    assert isinstance(made, FusionLoader)
    with made.trace(folder / "run.json"):
        for _ in range(EPOCHS):
            for batch in made:
                step(batch)
    timeline = read_timeline(folder / "run.json")
    waits = waits_of(timeline.steps)
    stats = made.stats()
    verdict = verdict_on(waits, work_of(timeline), timeline)
    found = {
        "report": verdict.headline.replace("\N{NO-BREAK SPACE}", " "),
        "remedy": verdict.remedy,
        "stats": stats.waiting,
        "processors": asdict(stats.processors),
        "startup_seconds": stats.waits.startup_seconds,
    }
    print(json.dumps(found))


# ---- causes ------------------------------------------------------------------------------------


def paint(folder: Path) -> None:
    """Writes photographs of 40 KB."""
    draw = np.random.default_rng(0)
    (folder / "one").mkdir(parents=True)
    for number in range(IMAGES):
        few = draw.integers(0, 256, (40, 50, 3), dtype=np.uint8)
        image = Image.fromarray(few).resize((500, 400), Image.Resampling.BICUBIC)
        image.save(folder / "one" / f"{number:03}.jpg", quality=90)


@contextlib.contextmanager
def busy_loops() -> Iterator[list[str]]:
    """Processes that compute, on all cores."""
    code = "while True: pass"
    count = LOOPS_PER_CORE * len(os.sched_getaffinity(0))
    loops = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield []
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextlib.contextmanager
def cpu_quota() -> Iterator[list[str]]:
    """A control group, and the beginning of a command that runs in it.

    Raises:
        OSError: control groups cannot be made here.
    """
    first = Path("/sys/fs/cgroup/cpu/cpu.shares").exists()
    root = Path("/sys/fs/cgroup/cpu" if first else "/sys/fs/cgroup")
    group = root / f"fusionloader-advice-{os.getpid()}"
    group.mkdir()
    try:
        if first:
            (group / "cpu.shares").write_text("262144")  # before all others, as without a group
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text(str(int(QUOTA * 100000)))
        else:
            (group / "cpu.weight").write_text("10000")
            (group / "cpu.max").write_text(f"{int(QUOTA * 100000)} 100000")
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        for _ in range(100):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


@contextlib.contextmanager
def caused(cause: str, files: Path, folder: Path) -> Iterator[list[str]]:
    """Yields the beginning of a command that runs for this reason alone."""
    with contextlib.ExitStack() as stack:
        if cause == "other processes":
            yield stack.enter_context(busy_loops())
        elif cause == "CPU quota":
            yield stack.enter_context(cpu_quota())
        elif cause == "slow storage":
            stack.enter_context(throttled(files, folder)).set_rate(STORAGE)
            yield []
        else:
            yield []


@contextlib.contextmanager
def first_in_line() -> Iterator[None]:
    """Runs this process and its children before others of the machine, if that is permitted."""
    session = Path("/proc/self/autogroup")  # where sessions share the cores, and not processes
    with contextlib.suppress(OSError):
        os.nice(HIGHEST)
    with contextlib.suppress(OSError):
        session.write_text(str(HIGHEST))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            session.write_text("0")


# ---- the study ---------------------------------------------------------------------------------


def run(prefix: list[str], arguments: list[str], **case: object) -> str:
    """Runs a Python command with the case in its environment; returns what it prints."""
    command = [*prefix, sys.executable, *arguments]
    environment = {**os.environ, "ADVICE": json.dumps(case)}
    done = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=600
    )
    return done.stdout


def study(cause: str, files: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Returns what report, stats() and analyze say."""
    with tempfile.TemporaryDirectory() as name, caused(cause, files, Path(name)) as prefix:
        case = {"cause": cause, "folder": str(files), "workers": options.workers}
        train = ["-m", "benchmarks.advice", "--train", name]
        found: dict[str, Any] = json.loads(
            run(prefix, train, kind="FusionLoader", **case).splitlines()[-1]
        )
        for kind in ("FusionLoader", "DataLoader"):
            out = Path(name) / f"{kind}.json"
            analyze = ["-m", "fusionloader", "analyze", "--seconds", str(options.seconds)]
            analyze += ["--json", str(out), "--loader", "benchmarks.advice:loader"]
            run(prefix, [*analyze, "--step", "benchmarks.advice:step"], kind=kind, **case)
            (measured,) = json.loads(out.read_text())["loaders"]
            verdict = measured["verdict"]
            key = "analyze" if kind == "FusionLoader" else "analyze, DataLoader"
            found[key] = verdict["sentences"][0]
            today = measured["phases"]["today"]["samples_per_second"]
            found[f"slower advice, {kind}"] = [
                each["change"] for each in verdict["remedies"] if each["rate"] <= today
            ]
    return found


def main() -> None:
    parser = parser_of(__doc__, rounds=1)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--causes", default=",".join(CAUSES))
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement (1)")
    options = parser.parse_args()
    if options.train:
        train(options.train)
        return
    with first_in_line():
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Tries all causes, and publishes what was said of them."""
    rows, causes = [], {}
    with tempfile.TemporaryDirectory() as name:
        files = Path(name) / "files"
        paint(files)
        for cause in options.causes.split(","):
            for _ in range(options.rounds):
                found = causes[cause] = study(cause, files, options)
                for face in ("report", "stats", "analyze", "analyze, DataLoader"):
                    words = OF_FACES.get(face, {}).get(cause, CAUSES[cause])
                    named = "yes" if words in found[face] else "no"
                    rows.append([cause, face, named, found[face]])
                    print(*rows[-1], sep=" | ", flush=True)
    publish(options, ("cause", "face", "named", "first sentence"), rows, causes=causes)


if __name__ == "__main__":
    main()
