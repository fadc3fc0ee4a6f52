"""User code that does what a file says: raises, exits, crashes or eats memory, once.

A command is a file in the run's folder, named for where it is obeyed. Whoever reads it first takes
it away, by renaming, so that one worker does it, and its successor goes on as if nothing was.
"""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path

PLACES = ("sample", "transform", "collate", "sampler", "worker_init_fn")
RAISES, EXITS, CRASHES, HUNGRY = "raises", "exits", "crashes", "hungry"
FAULTS = {
    RAISES: "an exception in user code",
    EXITS: "os._exit in user code",
    CRASHES: "a crash in user code",
    HUNGRY: "memory runs out in user code",
}


class Sprung(RuntimeError):
    """What a trap raises."""


def set_trap(folder: str, place: str, what: str, number: int, argument: str = "") -> None:
    """Has the next one that comes to a place do something; no other trap has the number."""
    ready = Path(folder) / f"trap-{place}"
    made = ready.with_suffix(".new")
    made.write_text(f"{number} {what} {argument}")
    made.rename(ready)


def error_of(number: int, place: str) -> str:
    """Returns a pattern of what a trap raises, with the sample as ``index`` if it is known."""
    return rf"{Sprung.__name__}: trap {number} in the {place}\b(?: of sample (?P<index>\d+))?"


def disarm(folder: str) -> None:
    """Takes back the traps into which nobody has stepped."""
    for place in PLACES:
        (Path(folder) / f"trap-{place}").unlink(missing_ok=True)


def spring(folder: str, place: str, index: int | None = None) -> None:
    """Does what the command says, if there is one.

    Raises:
        Sprung: it says so.
    """
    ready = f"{folder}/trap-{place}"
    if not os.path.exists(ready):
        return
    taken = f"{ready}.{os.getpid()}"
    try:
        os.rename(ready, taken)
    except FileNotFoundError:
        return
    number, what, argument = Path(taken).read_text().split(" ", 2)
    os.unlink(taken)
    with open(f"{folder}/sprung", "a") as log:
        log.write(f"{number} {what} {os.getpid()}\n")
    if what == RAISES:
        sample = "" if index is None else f" of sample {index}"
        raise Sprung(f"trap {number} in the {place}{sample}")
    if what == EXITS:
        os._exit(3)
    if what == CRASHES:
        ctypes.string_at(0)
    if what == HUNGRY:
        _eat(Path(argument))


def _eat(group: Path) -> None:
    """Enters a control group and takes memory until the kernel ends this process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    kept = []
    while True:
        kept.append(bytearray(b"x" * (1 << 22)))


class WorkerInit:
    """A ``worker_init_fn``."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, worker: int) -> None:
        spring(self.folder, "worker_init_fn")
