"""The physical limit: processes that decode the same files with libjpeg-turbo and do no more."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import SimpleQueue
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from PIL import Image, features

from fusionloader.cli.measure.protocol import Running

# Files a process takes at a time: few enough that all end together.
CLAIM = 8


def start_decode_limit(paths: list[Path], processes: int) -> Running:
    """``processes`` processes read and fully decode ``paths`` to RGB; one count an epoch."""
    if not features.check_feature("libjpeg_turbo"):
        raise RuntimeError("Pillow was built without libjpeg-turbo: its speed is no limit")
    context = multiprocessing.get_context("spawn")
    claimed = context.Value("l", 0)
    begin: SimpleQueue[bool] = context.SimpleQueue()
    ended: SimpleQueue[int] = context.SimpleQueue()
    crew = [
        context.Process(target=_decode, args=(paths, claimed, begin, ended), daemon=True)
        for _ in range(processes)
    ]
    for member in crew:
        member.start()

    def epoch() -> Iterator[int]:
        claimed.value = 0
        for _ in crew:
            begin.put(True)
        yield sum(ended.get() for _ in crew)

    def close() -> None:
        _end(crew, begin)

    return Running(epoch, close)


def _end(crew: list[SpawnProcess], begin: SimpleQueue[bool]) -> None:
    for _ in crew:
        begin.put(False)
    for member in crew:
        member.join()


def _decode(
    paths: list[Path],
    claimed: Synchronized[int],
    begin: SimpleQueue[bool],
    ended: SimpleQueue[int],
) -> None:
    """Decodes claimed files until none is left, once for every ``True`` in ``begin``."""
    while begin.get():
        done = 0
        while True:
            with claimed.get_lock():
                start = claimed.value
                claimed.value = start + CLAIM
            mine = paths[start : start + CLAIM]
            if not mine:
                break
            for path in mine:
                with Image.open(path) as image:
                    image.convert("RGB")
            done += len(mine)
        ended.put(done)
