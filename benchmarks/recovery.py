"""A worker is killed in mid-epoch: how long until its successor has made a tiny-batch?

Training takes batches all the time, as fast as they come. The time begins when the process has
ended, and ends with the first tiny-batch of the process that took its place.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from torchvision.datasets import ImageFolder

from benchmarks.study import interleaved, parser_of, publish
from benchmarks.user_datasets import DATASETS
from fusionloader import FusionLoader
from fusionloader.cli.bench import setting_of
from fusionloader.observe.statistics.snapshot import WorkerStats

METHODS = ("fork", "spawn")
_PAUSE_SECONDS = 0.002
_LIMIT_SECONDS = 120.0


class Training:
    """Takes the batches of one epoch after the other in a thread, until it is left."""

    def __init__(self, loader: FusionLoader[Any]) -> None:
        self.loader = loader
        self.error: BaseException | None = None
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._train)

    def __enter__(self) -> Training:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()
        self.loader.close()

    def _train(self) -> None:
        try:
            while not self._left.is_set():
                for _ in self.loader:
                    if self._left.is_set():
                        break
        except BaseException as error:
            self.error = error

    def workers(self) -> dict[int, WorkerStats]:
        """What each worker has done, by number.

        Raises:
            RuntimeError: training has failed.
        """
        if self.error is not None:
            raise RuntimeError("training has failed") from self.error
        return {worker.number: worker for worker in self.loader.stats().workers}

    def wait_for(self, condition: Callable[[], bool]) -> float:
        """Waits; returns when it came to that."""
        deadline = time.perf_counter() + _LIMIT_SECONDS
        while not condition():
            if time.perf_counter() > deadline:
                raise TimeoutError(f"not recovered after {_LIMIT_SECONDS:.0f} s")
            time.sleep(_PAUSE_SECONDS)
        return time.perf_counter()


def recovery_seconds(training: Training, chance: random.Random) -> float:
    """Kills a worker that has worked for a while; returns what its successor took."""
    count, tiny = training.loader.num_workers, training.loader.tiny_batch_size
    before = {number: worker.samples for number, worker in training.workers().items()}

    def all_work() -> bool:
        now = training.workers()
        return len(now) == count and all(
            worker.samples >= before.get(number, 0) + 2 * tiny for number, worker in now.items()
        )

    training.wait_for(all_work)
    time.sleep(chance.uniform(0, 0.1))  # anywhere in its work
    victim = chance.choice(list(training.workers().values()))
    handle = os.pidfd_open(victim.pid)
    signal.pidfd_send_signal(handle, signal.SIGKILL)
    began = _ended(handle)
    done = training.workers()[victim.number].samples

    def successor_delivers() -> bool:
        worker = training.workers()[victim.number]
        return worker.pid != victim.pid and worker.samples >= done + tiny

    return training.wait_for(successor_delivers) - began


def _ended(handle: int) -> float:
    """Waits until a process has ended; returns when that was."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.poll()
    os.close(handle)
    return time.perf_counter()


def main() -> None:
    parser = parser_of(__doc__.splitlines()[0] if __doc__ else None, rounds=40)
    parser.add_argument("--seed", type=int, default=0, help="of which worker dies, and when (0)")
    options = parser.parse_args()
    setting, corpus = setting_of(options, "default")
    chance = random.Random(options.seed)
    datasets = {
        "compiled plan": DATASETS["image-folder"]([], setting.folder()),
        "own dataset": DATASETS["own"](_paths(setting.folder()), setting.folder()),
    }
    values: dict[str, list[float]] = {}
    for name, dataset in datasets.items():
        for method in (options.start_method,) if options.start_method else METHODS:
            with Training(_loader(dataset, method, options)) as training:
                measured = {f"{name}, {method}": partial(recovery_seconds, training, chance)}
                values |= interleaved(measured, options.rounds)
    rows = [
        (
            name,
            f"{statistics.median(seconds):.3f}",
            f"{sorted(seconds)[int(len(seconds) * 0.95)]:.3f}",
            f"{max(seconds):.3f}",
        )
        for name, seconds in values.items()
    ]
    header = ("workers", "median s", "p95 s", "longest s")
    publish(options, header, rows, seconds=values, corpus=corpus)


def _paths(folder: Any) -> list[str]:
    return [path for path, _ in ImageFolder(str(folder)).samples]


def _loader(dataset: Any, method: str, options: argparse.Namespace) -> FusionLoader[Any]:
    return FusionLoader(
        dataset,
        options.batch_size,
        shuffle=True,
        num_workers=options.workers,
        persistent_workers=True,
        multiprocessing_context=method,
        seed=0,
    )


if __name__ == "__main__":
    main()
