"""Predicted epochs against measured ones: workers, decoded caches, and a storage of known speed.

With ``--waiting`` of code that waits instead, as for a database: workers, and lengths of a wait.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from benchmarks.quiet import Quiet
from benchmarks.study import parser_of, publish
from benchmarks.throttle import Throttle, throttled
from fusionloader import DecodedCache, FusionLoader
from fusionloader.cli.analysis import files
from fusionloader.cli.analysis.drains import Drain, drain
from fusionloader.cli.analysis.findings import LoaderShape
from fusionloader.cli.analysis.probes import CyclicBatches, first_mini_batches, like
from fusionloader.cli.analysis.ranks import AnalyzedRanks
from fusionloader.cli.analysis.service import (
    READERS,
    SampleService,
    measure_service,
    sample_costs,
    wake_seconds,
)
from fusionloader.cli.analysis.what_if.model import Model
from fusionloader.cli.analysis.what_if.questions import Question
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.processes import cpu_between, read_cpu
from fusionloader.cli.measure.report import announce, table
from fusionloader.cli.measure.workloads import pil_dataset
from fusionloader.system.amounts import parse_bytes

WORKERS = (1, 2)
SHARES = (0.0, 0.5, 1.0)
SEED = 11
PROBE = 2.0  # seconds, as analyze has it
ALL_IMAGES = "8GiB"
WAITS = (4e-3, 12e-3)  # seconds of a sample
WAITING_WORKERS = (1, 2, 8)
WAITING_SAMPLES = 512
HEADER = (
    "workers", "cache", "storage", "predicted s", "measured s", "error", "spread",
    "CPU ms/sample", "others' cores",
)  # fmt: skip


@dataclass(slots=True)
class Measured:
    """The epochs of one setting: seconds, and CPU seconds of the workers per sample."""

    question: Question
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)


def loader_of(
    dataset: Any, batch_size: int, workers: int, budget: int | str, start: str = "spawn"
) -> FusionLoader[Any]:
    """Returns a loader; spawned workers load the library that throttles."""
    return FusionLoader(
        dataset,
        batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        multiprocessing_context=start,
        generator=torch.Generator().manual_seed(SEED),
        cache=DecodedCache(budget) if budget else None,
    )


def train(loader: FusionLoader[Any], step: float) -> float:
    """Returns the seconds of an epoch whose steps wait, as the host of a GPU does."""
    started = time.perf_counter()
    for _ in loader:
        time.sleep(step)
    return time.perf_counter() - started


def epoch(measured: Measured, loader: FusionLoader[Any], step: float, quiet: Quiet) -> None:
    """Measures one epoch of a setting."""

    def once() -> tuple[float, float]:
        cpu = read_cpu()
        seconds = train(loader, step)
        return seconds, cpu_between(cpu, read_cpu())[1]

    (seconds, cpu), others = quiet.run(once)
    measured.seconds.append(seconds)
    measured.cpu.append(cpu / len(loader.dataset))  # type: ignore[arg-type]
    measured.others.append(others)


class Services:
    """What samples cost, measured as ``analyze`` does, again and again."""

    def __init__(self, base: FusionLoader[Any], quiet: Quiet) -> None:
        self._base, self._quiet = base, quiet
        self._batches = first_mini_batches(base, len(base.dataset))  # type: ignore[arg-type]
        indices = [index for batch in self._batches for index in batch]
        parts = files.parts_of(base.dataset, indices)
        every = [part for each in parts.values() for part in each]
        self._reads = files.read_rates(every, READERS)
        self._costs = sample_costs(base, files.sizes_of(parts))
        self._wakes: list[float] = []
        self._found: dict[str, list[Drain]] = {"warm": [], "alone": [], "cached": []}

    def measure(self) -> None:
        """Measures once more."""
        full = len(self._batches)
        self._wakes.append(self._quiet.run(wake_seconds)[0])
        for name, settle, changes in (
            ("warm", 0, {}),
            ("alone", 0, {"num_workers": 1}),
            ("cached", full, {"cache": DecodedCache(ALL_IMAGES)}),
        ):
            self._found[name].append(self._quiet.run(partial(self._drain, settle, changes))[0])

    def _drain(self, settle: int, changes: dict[str, Any]) -> Drain:
        return drain(like(self._base, CyclicBatches(self._batches), **changes), PROBE, settle)

    @property
    def stored_bytes(self) -> float:
        """Of a decoded image."""
        return self._found["cached"][0].stored_bytes

    def median(self) -> SampleService:
        """Returns the median of each."""
        found = {name: median_of(drains) for name, drains in self._found.items()}
        wake = statistics.median(self._wakes)
        return SampleService(**found, reads=self._reads, costs=self._costs, wake_seconds=wake)


def median_of(drains: list[Drain]) -> Drain:
    return sorted(drains, key=lambda drained: drained.service_seconds)[len(drains) // 2]


def main() -> None:
    parser = parser_of(__doc__, rounds=7)
    parser.add_argument("--waiting", action="store_true", help="the study of code that waits")
    parser.add_argument("--rate", default="120MB", help="of the slow storage, a second (120MB)")
    parser.add_argument("--step-ms", type=float, default=16.0, help="of a training step (16)")
    parser.add_argument(
        "--patience", type=float, default=600, help="seconds to wait for a quiet machine (600)"
    )
    options = parser.parse_args()
    if options.waiting:
        finish(options, waiting_study(options))
        return
    setting, corpus = setting_of(options, "default")
    with (
        tempfile.TemporaryDirectory() as folder,
        throttled(setting.folder(), Path(folder)) as throttle,
    ):
        rows = study(options, pil_dataset(setting.folder(), "default"), throttle)
    finish(options, rows, corpus=corpus)


def finish(options: Any, rows: list[tuple[str, ...]], **figures: Any) -> None:
    """Prints and writes what was measured."""
    errors = [abs(float(row[5].rstrip("%"))) for row in rows]
    publish(options, HEADER, rows, **figures, largest_error_percent=max(errors))
    print(f"largest error {max(errors):.1f} %, median {statistics.median(errors):.1f} %")


def study(options: Any, dataset: Any, throttle: Throttle) -> list[tuple[str, ...]]:
    step, size = options.step_ms / 1e3, options.batch_size
    quiet = Quiet(options.patience)
    base = loader_of(dataset, size, max(WORKERS), 0)
    services = Services(base, quiet)
    services.measure()
    measured: list[Measured] = []
    steps: list[float] = []
    rows: list[tuple[str, ...]] = []
    try:
        for share in SHARES:  # living loaders of a dataset share one cache
            measured += of_share(options, share, dataset, throttle, services.stored_bytes, quiet)
            services.measure()
            steps.append(quiet.run(lambda: step_seconds(step))[0])
            shape = LoaderShape.of(base, size, AnalyzedRanks())
            model = Model(shape, services.median(), statistics.median(steps), 0.0)
            rows = [row(each, model) for each in measured]
            announce(f"{share:.0%} cached, {quiet.repeated} repeated")
            announce(table(HEADER, rows))
    except TimeoutError as error:
        if not rows:
            raise SystemExit(f"nothing was measured: {error}") from error
        announce(f"{error}: what was measured until now is reported")
    return rows


def of_share(
    options: Any, share: float, dataset: Any, throttle: Throttle, stored_bytes: float, quiet: Quiet
) -> list[Measured]:
    """Trains interleaved epochs of all settings with a share of the images cached."""
    budget = int(share * stored_bytes * len(dataset)) if share < 1 else ALL_IMAGES
    rates = (0.0, float(parse_bytes(options.rate)))
    loaders = {
        workers: loader_of(dataset, options.batch_size, workers, budget) for workers in WORKERS
    }
    measured = {}
    for workers, loader in loaders.items():
        train(loader, 0.0)
        store = loader.stats().decoded_cache
        kept = store.images / len(dataset) if store else 0.0
        for rate in rates:
            measured[workers, rate] = Measured(Question(workers, kept, rate))
    for _ in range(options.rounds):
        for (workers, rate), each in measured.items():
            throttle.set_rate(rate)
            epoch(each, loaders[workers], options.step_ms / 1e3, quiet)
    throttle.set_rate(0.0)
    for loader in loaders.values():
        loader.close()
    return list(measured.values())


class Waiting(Dataset[Any]):
    """Samples whose code waits without a core, and computes a little."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return WAITING_SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._seconds)
        return torch.full((3, 64, 64), float(index)).sqrt()


def waiting_study(options: Any) -> list[tuple[str, ...]]:
    """Predicts from two workers, as an analysis of a script with two workers would."""
    step, size = options.step_ms / 1e3, options.batch_size
    quiet = Quiet(options.patience)
    rows = []
    for wait in WAITS:
        dataset = Waiting(wait)
        base = loader_of(dataset, size, max(WORKERS), 0, "fork")
        batches = first_mini_batches(base, len(dataset))
        none: dict[Any, list[Any]] = {index: [] for batch in batches for index in batch}
        service, _ = quiet.run(
            partial(measure_service, base, batches, none, PROBE, AnalyzedRanks())
        )
        own, _ = quiet.run(lambda: step_seconds(step))
        model = Model(LoaderShape.of(base, size, AnalyzedRanks()), service, own, 0.0)
        for workers in WAITING_WORKERS:
            loader = loader_of(dataset, size, workers, 0, "fork")
            train(loader, 0.0)
            measured = Measured(Question(workers))
            for _ in range(options.rounds):
                epoch(measured, loader, step, quiet)
            loader.close()
            rows.append((f"{workers}, waits {wait * 1e3:g} ms", *row(measured, model)[1:]))
            announce(table(HEADER, rows))
    return rows


def step_seconds(step: float, steps: int = 20) -> float:
    """Returns what a step takes without a loader."""
    started = time.perf_counter()
    for _ in range(steps):
        time.sleep(step)
    return (time.perf_counter() - started) / steps


def row(measured: Measured, model: Model) -> tuple[str, ...]:
    predicted = model.predict(measured.question).seconds
    assert predicted is not None
    median, question = statistics.median(measured.seconds), measured.question
    spread = (max(measured.seconds) - min(measured.seconds)) / median
    return (
        str(question.workers),
        f"{question.cache or 0:.0%}",
        f"{question.storage / 1e6:.0f}MB/s" if question.storage else "memory",
        f"{predicted:.3f}",
        f"{median:.3f}",
        f"{predicted / median - 1:+.1%}",
        f"{spread:.0%}",
        f"{statistics.median(measured.cpu) * 1e3:.3f}",
        f"{statistics.median(measured.others):.2f}",
    )


if __name__ == "__main__":
    main()
