"""A training process: makes the loaders of a kind, and does one thing after the other as told.

Arguments: a ``Setting`` as JSON, and the epochs for which it is only asked for all batches, or 0.
Commands come as lines of JSON on standard input, one answer each goes to what was standard output.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import gc
import hashlib
import importlib
import json
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from support.raised_at import CALLS, Steps
from torch.utils._pytree import tree_leaves

from chaos import limits
from chaos.kinds.setting import EpochKind, Part, Setting

ERRORS: dict[str, Callable[[str], BaseException]] = {
    "KeyboardInterrupt": KeyboardInterrupt,
    "MemoryError": MemoryError,
    "OSError": lambda text: OSError(errno.EMFILE, text),
}


def rows_of(batch: Any) -> list[str]:
    """Returns the SHA-256 of each row of a batch: types, shapes and all bytes of its leaves."""
    leaves = [torch.as_tensor(leaf) for leaf in tree_leaves(batch)]
    digests = []
    for row in range(len(leaves[0])):
        digest = hashlib.sha256()
        for leaf in leaves:
            part = leaf[row].contiguous()
            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
            digest.update(part.numpy().tobytes())
        digests.append(digest.hexdigest())
    return digests


def said_by(error: BaseException) -> str:
    """Returns all that an error says."""
    causes = [error, error.__cause__, error.__context__]
    notes = [str(cause) for cause in causes if cause] + getattr(error, "__notes__", [])
    return f"{type(error).__name__}: " + " ".join(notes)


def frames_of(error: BaseException) -> str:
    """Returns where an error was raised: the innermost frames, of it and of its causes."""
    found = []
    for each in (error, error.__cause__, error.__context__):
        frames = traceback.extract_tb(each and each.__traceback__)[-4:]
        found += [f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames)]
    return " < ".join(found)


class Child:
    """A forked process that keeps batches and looks at them when it is told to."""

    def __init__(self, batches: list[tuple[Any, list[str]]]) -> None:
        reads, self._told = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            os.read(reads, 1)
            os._exit(int(any(rows_of(batch) != rows for batch, rows in batches)))
        os.close(reads)

    def look(self) -> int:
        """Returns 1 if a batch is no longer what it was, 0 if all are."""
        os.write(self._told, b"\n")
        os.close(self._told)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


_PR_SET_PDEATHSIG = 1


def begin_at(part: Part, epoch: int) -> None:
    """Sets the number of the next epoch, however many were begun and failed before.

    Workers of streams are seeded from torch's generator, as with its own loader.
    """
    torch.manual_seed(epoch)
    if hasattr(part.loader, "set_epoch"):
        part.loader.set_epoch(epoch)


class Skips(logging.Handler):
    """The samples that loaders say they have left out, and why."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, str]] = []
        logging.getLogger("fusionloader").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if match := re.match(r"Sample: index (\d+)\b.* was left out: ", text, re.DOTALL):
            self.found.append((int(match[1]), text))

    def take(self) -> list[tuple[int, str]]:
        """Returns what has been said since it was asked for."""
        found, self.found = self.found, []
        return found


class Taken:
    """A loader's epochs, batch by batch."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._iterator: Iterator[Any] | None = None
        self.epoch, self.calls = -1, 0

    def next(
        self,
        keep: Callable[[Any, list[str]], None],
        error: Exception | None,
        planted: tuple[str, str, int] | None,
    ) -> dict[str, Any]:
        """Takes a batch, the end, or an error, which may have come before.

        ``planted`` is an error's type and text, and the step of the loader at which it is raised.
        """
        if self._iterator is None:
            self.epoch += 1
            begin_at(self._part, self.epoch)
        self.calls += 1
        steps = Steps(events=(*CALLS, "c_return"))
        found: dict[str, Any] = {"epoch": self.epoch, "calls": self.calls}
        try:
            if error is not None:
                raise error
            if planted is None:
                batch = self._take()
            else:
                kind, text, position = planted
                batch = steps.raise_at(position, ERRORS[kind](text), self._take)
            if batch is None:
                self._iterator, found["end"] = None, True
            else:
                found["rows"] = rows_of(batch)
                keep(batch, found["rows"])
        except (Exception, KeyboardInterrupt) as error:
            found["error"], found["raised"] = said_by(error), frames_of(error)
            # Torch's workers take 5 s to end where the garbage collector ends their iterator.
            for each in (error, error.__cause__, error.__context__):
                traceback.clear_frames(each and each.__traceback__)
        return {**found, "under_way": self._iterator is not None, "interrupted": steps.place}

    def _take(self) -> Any:
        if self._iterator is None:
            self._iterator = iter(self._part.loader)
        return next(self._iterator, None)

    def leave(self) -> bool:
        """Drops the iterator; returns whether there was one."""
        was_under_way, self._iterator = self._iterator is not None, None
        gc.collect()
        return was_under_way


class Commands:
    """What the campaign can ask for.

    Commands have numbers, and so have answers: torch's handler of SIGCHLD may raise at any moment,
    so that one is obeyed, or answered, once more.

    Attributes:
        interruption: an error raised when nobody had called the loader.
    """

    def __init__(self, setting: Setting) -> None:
        self._epochs = _kind(setting).make(setting)
        self._taken = [Taken(part) for part in self._epochs.parts]
        self._kept: list[tuple[Any, list[str]]] = []
        self._last: list[
            tuple[Any, list[str]]
        ] = []  # the newest batch, as training's variable has it
        self._children: list[Child] = []
        self._skips = Skips()
        self._answer: tuple[int, Any] = (-1, None)
        self.interruption: Exception | None = None
        self._are_over = False
        self._lines: list[bytes] = []
        self._arrived = threading.Condition()

    def read(self) -> None:
        """Reads what comes, not through ``sys.stdin``, whose lock forked processes wait for."""
        text = b""
        while more := os.read(0, 1 << 16):
            *whole, text = (text + more).split(b"\n")
            with self._arrived:
                self._lines += whole
                self._arrived.notify_all()
        with self._arrived:
            self._are_over = True
            self._arrived.notify_all()

    def wait_for(self, number: int) -> bool:
        """Waits for a command; returns whether it has come, and not the end."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._are_over or len(self._lines) > number)
            return len(self._lines) > number

    def obey(self, number: int, answers: int) -> None:
        """Does one, and writes the answer to a descriptor."""
        if self._answer[0] != number:  # or it was interrupted when it had been done
            name, *arguments = json.loads(self._lines[number])
            # Only the loader's own calls can be interrupted at any line, and obeyed once more.
            handler = signal.getsignal(signal.SIGCHLD)
            if name != "next":
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                self._answer = number, getattr(self, name)(*arguments)
            finally:
                if name != "next":
                    signal.signal(signal.SIGCHLD, handler)
        os.write(answers, json.dumps(self._answer).encode() + b"\n")

    def hello(self) -> dict[str, Any]:
        parts = [{"order": part.order, "paths": part.paths} for part in self._epochs.parts]
        return {"pid": os.getpid(), "parts": parts}

    def next(
        self, part: int, keep: bool = False, planted: tuple[str, str, int] | None = None
    ) -> dict[str, Any]:
        """Takes a batch of a part."""
        error, self.interruption = self.interruption, None

        def note(batch: Any, rows: list[str]) -> None:
            self._last[:] = [(batch, rows)]
            if keep:
                self._kept.append((batch, rows))

        found = self._taken[part].next(note, error, planted)
        return {**found, "skipped": self._skips.take()}

    def all(self, epochs: int) -> list[list[list[list[str]]]]:
        """The rows of all batches of some epochs, by part."""
        found = []
        for part in self._epochs.parts:
            found.append([])
            for epoch in range(epochs):
                begin_at(part, epoch)
                found[-1].append([rows_of(batch) for batch in part.loader])
        return found

    def leave(self, part: int) -> bool:
        return self._taken[part].leave()

    def recover(self) -> bool:
        self._epochs.recover()
        return True

    def fork(self) -> int:
        """Forks a process that looks at its batches, drops what it has of the loaders, and ends."""
        child = os.fork()
        if child == 0:
            self._kept += self._last
            for taken in self._taken:
                taken.leave()
            changed = self.kept()
            gc.collect()
            os._exit(int(changed > 0))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def fork_child(self) -> list[int]:
        """Forks a process that keeps the batches; drops them here.

        Returns how many have changed, and the number of the process.
        """
        self._children.append(Child([*self._kept, *self._last]))
        self._last.clear()
        return [self.kept(), self._children[-1].pid]

    def children(self) -> list[int]:
        """Has the forked processes look at their batches; returns what they have found."""
        found = [child.look() for child in self._children]
        self._children.clear()
        return found

    def compute(self, seconds: float) -> bool:
        """Does something else for a while."""
        numbers, until = torch.rand(64, 64), time.monotonic() + seconds
        while time.monotonic() < until:
            numbers @ numbers  # noqa: B018
        return True

    def kept(self) -> int:
        """How many of the batches that were kept are no longer what they were; drops them."""
        changed = sum(rows_of(batch) != rows for batch, rows in self._kept)
        self._kept.clear()
        return changed

    def made_by(self) -> dict[str, int]:
        """Counts samples, batches and files by the part of the package that had to do with them."""
        made: Counter[str] = Counter()
        for part in self._epochs.parts:
            stats = part.loader.stats().as_dict() if hasattr(part.loader, "stats") else {}
            made["samples by borrowed workers"] += stats.get("borrowed_samples", 0)
            made["samples by remote workers"] += (stats.get("remote") or {}).get("samples", 0)
            made["samples by GPU workers"] += (stats.get("gpu_worker") or {}).get("samples", 0)
            shared = stats.get("shared_prep") or {}
            made["batches by jobs together"] += shared.get("shared_batches", 0)
            made["samples from a cache"] += stats.get("cache_hits", 0)
            made["deferred files"] += (stats.get("deferred_images") or {}).get("files", 0)
        return +made

    def close(self) -> list[str]:
        """Ends everything; returns what is open that was not before."""
        for number in range(len(self._taken)):
            self.leave(number)
        self._kept.clear()
        self._last.clear()
        self._epochs.close()
        self._taken.clear()
        del self._epochs
        gc.collect()
        return sorted(opened() - before)


def _kind(setting: Setting) -> EpochKind:
    room = importlib.import_module(setting.room)
    return next(kind for kind in room.KINDS if kind.name == setting.kind)


def opened() -> set[str]:
    """What this process has open of which names tell that the loader opened it."""
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(fd)
        except OSError:
            continue
        if "fusionloader" in target or target.startswith(("pipe:", "anon_inode:[eventfd]")):
            found.add(target)
    return found


def main() -> None:
    torch.set_num_threads(1)
    setting = Setting(**json.loads(sys.argv[1]))
    answers = os.dup(1)
    os.dup2(2, 1)  # user code may print
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    limits.lift()
    commands = Commands(setting)
    os.write(answers, json.dumps([-1, commands.hello()]).encode() + b"\n")
    threading.Thread(target=commands.read, daemon=True).start()
    number = 0
    while True:
        try:
            while commands.wait_for(number):
                commands.obey(number, answers)
                number += 1
            return
        except RuntimeError as error:
            if "DataLoader worker (pid" not in str(error):
                raise
            commands.interruption = error


if __name__ == "__main__":
    before = opened()
    main()
