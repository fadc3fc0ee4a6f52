"""Ranks on this machine, with the environment that torchrun gives them and without its launcher."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

from support import warm_start


def port() -> int:
    """A free port, of those that the kernel gives to nobody who does not ask for it by number."""
    while True:
        number = random.SystemRandom().randrange(20_000, 30_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", number))
            return number


def environment(count: int) -> list[dict[str, str]]:
    """What torchrun sets for each of the ranks of one job."""
    job = {
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port()),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }
    return [{**job, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def ranks(script: Path, *arguments: str, count: int, path: list[str], **others: str) -> str:
    """Runs a script once per rank, to the end of all; returns what rank 0 has printed.

    Args:
        script: its file.
        arguments: its arguments.
        count: how many ranks there are.
        path: folders to import from, as in ``PYTHONPATH``.
        others: further variables that differ from this process's.
    """
    started = [
        warm_start.start(script, *arguments, path=path, **rank, **others)
        for rank in environment(count)
    ]
    try:
        printed = [rank.stdout.read() for rank in started]
        assert [rank.wait() for rank in started] == [0] * count, printed
    finally:
        for rank in started:
            rank.kill()
    return printed[0]
