"""What a remote worker's answers cost, against the native executor by itself.

A request is for a tiny-batch of RandomResizedCrop(224) and a flip, as uint8. CPU time of a worker
process and of the client that asks it over the loopback device; files are in the page cache.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import metadata
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from statistics import median

import fusionloader
from benchmarks.cache_servers import cpu_seconds
from benchmarks.study import parser_of, publish
from fusionloader.cli.bench import setting_of
from fusionloader.sharing.remote import protocol
from fusionloader.sharing.remote.protocol import DataMode, Setup, WantedSample, WorkRequest
from fusionloader.sharing.remote.worker.service import WorkerService
from fusionloader.system.transport import connection
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.messages import Outgoing
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.exchange import plan_to_data
from fusionloader.transforms.plan.stages import Plan, RandomHorizontalFlip, RandomResizedCrop

BATCHES = (4, 16)
_FILES = 256
_SAMPLES = 512  # of a measurement
_SECONDS = 60.0
THERE = "127.0.0.3"
TOKEN = b"the token of a benchmark"
CROP = RandomResizedCrop(224, 224, (0.08, 1.0), (0.75, 4 / 3), ("bilinear",))
PLAN = Plan((CROP, RandomHorizontalFlip(0.5)), None, 224, 224)
PILLOW = metadata.version("pillow")

Prepare = Callable[[Sequence[int]], None]
"""Prepares the samples with these numbers."""


def alone(paths: Sequence[Path], read: bool) -> Prepare:
    """The native executor in this process, with files read or in memory."""
    executor = make_executor(PLAN, PILLOW)
    encoded = [path.read_bytes() for path in paths]
    out = memoryview(bytearray(executor.result_bytes * max(BATCHES)))

    def prepare(numbers: Sequence[int]) -> None:
        for place, number in enumerate(numbers):
            data = paths[number].read_bytes() if read else encoded[number]
            row = out[place * executor.result_bytes : (place + 1) * executor.result_bytes]
            executor.run(data, 1, 2, number, 0, row)

    return prepare


def serve(pipe: Pipe) -> None:
    service = WorkerService(Address(THERE, 0), Identity.of(TOKEN), 1)
    pipe.send(service.address)
    time.sleep(3600)


@contextmanager
def worker(paths: Sequence[Path], mode: DataMode) -> Iterator[tuple[Prepare, int]]:
    """Starts a worker; yields what asks it, and its process's id."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,))
    process.start()
    end = connection.connect(ours.recv(), Identity.of(TOKEN), protocol.SERVICE, _SECONDS)
    row_bytes = make_executor(PLAN, PILLOW).result_bytes
    setup = Setup(fusionloader.__version__, plan_to_data(PLAN), row_bytes, PILLOW)
    data = [os.fsencode(p) if mode is DataMode.PATHS else p.read_bytes() for p in paths]

    def ask(message: Outgoing, kind: int) -> None:
        end.send(message, _SECONDS)
        answer = end.receive(_SECONDS, _SECONDS)
        if answer.kind != kind:
            raise SystemExit(f"the worker declines: {answer.head.decode(errors='replace')}")

    def prepare(numbers: Sequence[int]) -> None:
        body = [data[number] for number in numbers]
        samples = [
            WantedSample(number, 0, 0, 0, len(each))
            for number, each in zip(numbers, body, strict=True)
        ]
        head = WorkRequest(0, 1, 2, mode, samples).encode()
        ask(Outgoing(protocol.PREPARE, head, body), protocol.ROWS)

    try:
        ask(Outgoing(protocol.SETUP, setup.encode()), protocol.READY)
        yield prepare, process.pid or 0
    finally:
        end.close()
        process.kill()
        process.join()


def costs(prepare: Prepare, pid: int, batch: int, files: int) -> list[float]:
    """Returns microseconds a request: CPU of the worker and of this process, and elapsed."""
    requests = _SAMPLES // batch

    def clocks() -> list[float]:
        return [cpu_seconds(pid) if pid else 0.0, time.process_time(), time.perf_counter()]

    before = clocks()
    for number in range(requests):
        prepare([(number * batch + place) % files for place in range(batch)])
    return [1e6 * (b - a) / requests for a, b in zip(before, clocks(), strict=True)]


def main() -> None:
    options = parser_of(__doc__, rounds=11).parse_args()
    setting, corpus = setting_of(options, "default")
    found = sorted(path for path in setting.folder().glob("*/*") if path.is_file())
    paths = [path.absolute() for path in found[:_FILES]]
    modes = {"paths": DataMode.PATHS, "encoded bytes": DataMode.ENCODED}
    measured: dict[tuple[str, int], list[list[float]]] = {}
    with ExitStack() as stack:
        runs = {
            "executor, files": (alone(paths, read=True), 0),
            "executor, bytes in memory": (alone(paths, read=False), 0),
        }
        for encrypt in (False, True):
            for mode in modes:
                name = f"worker, {mode}{', encrypted' if encrypt else ''}"
                with _encrypted(encrypt):
                    runs[name] = stack.enter_context(worker(paths, modes[mode]))
        for _ in range(options.rounds):
            for name, (prepare, pid) in runs.items():
                for batch in BATCHES:
                    figures = costs(prepare, pid, batch, len(paths))
                    measured.setdefault((name, batch), []).append(figures)
    rows = []
    for (name, batch), figures in measured.items():
        middle = [f"{median(each):.0f}" for each in zip(*figures, strict=True)]
        least = [f"{min(each):.0f}" for each in zip(*figures, strict=True)]
        rows.append((name, str(batch), *middle, *least[:2]))
    header = (
        "prepared by",
        "samples a request",
        "worker CPU us/request",
        "client CPU us/request",
        "us/request",
        "least worker",
        "least client",
    )
    every = [
        {"prepared by": name, "batch": batch, "worker_client_elapsed_us": figures}
        for (name, batch), figures in measured.items()
    ]
    mean_bytes = sum(path.stat().st_size for path in paths) / len(paths)
    publish(options, header, rows, mean_bytes=mean_bytes, measured=every, corpus=corpus)


@contextmanager
def _encrypted(encrypt: bool) -> Iterator[None]:
    """Connections that begin here are encrypted, as between machines; forked workers' too."""
    before = connection.is_loopback
    if encrypt:
        connection.is_loopback = lambda _: False
    try:
        yield
    finally:
        connection.is_loopback = before


if __name__ == "__main__":
    main()
