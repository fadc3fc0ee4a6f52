"""A limit for comparison: processes that only decode the same files with libjpeg-turbo."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import SimpleQueue
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from PIL import Image, features

from fusionloader.cli.measure.protocol import Running

# Files that a process claims at a time: few enough that all processes end together.
CLAIM = 8


def start_decode_limit(paths: list[Path], processes: int) -> Running:
    """Starts processes that read and decode ``paths`` to RGB; an epoch yields one count."""
    if not features.check_feature("libjpeg_turbo"):
        raise RuntimeError("Pillow was built without libjpeg-turbo: its speed is no limit")
    context = multiprocessing.get_context("spawn")
    claimed = context.Value("l", 0)
    begin: SimpleQueue[bool] = context.SimpleQueue()
    ended: SimpleQueue[int] = context.SimpleQueue()
    workers = [
        context.Process(target=_decode, args=(paths, claimed, begin, ended), daemon=True)
        for _ in range(processes)
    ]
    for worker in workers:
        worker.start()

    def epoch() -> Iterator[int]:
        claimed.value = 0
        for _ in workers:
            begin.put(True)
        yield sum(ended.get() for _ in workers)

    def close() -> None:
        _end(workers, begin)

    return Running(epoch, close)


def _end(workers: list[SpawnProcess], begin: SimpleQueue[bool]) -> None:
    for _ in workers:
        begin.put(False)
    for worker in workers:
        worker.join()


def _decode(
    paths: list[Path], claimed: Synchronized[int], begin: SimpleQueue[bool], ended: SimpleQueue[int]
) -> None:
    """Decodes claimed files until none is left, once for every ``True`` in ``begin``."""
    while begin.get():
        done = 0
        while True:
            with claimed.get_lock():
                start = claimed.value
                claimed.value = start + CLAIM
            chunk = paths[start : start + CLAIM]
            if not chunk:
                break
            for path in chunk:
                with Image.open(path) as image:
                    image.convert("RGB")
            done += len(chunk)
        ended.put(done)
