"""The campaign's end of a training process: commands, answers, and what belongs to it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from support.waiting import gone
from support.warm_start import Starter

from chaos.kinds.setting import Setting

SCRIPT = Path(__file__).with_name("epoch_process.py")
TESTS = Path(__file__).parents[1]
PATH = [str(TESTS.parent), str(TESTS)]
LIMIT_SECONDS = float(os.environ.get("FUSIONLOADER_CHAOS_LIMIT", "90"))  # for an answer
_POLL_SECONDS = 0.02
# Python's own helpers of multiprocessing: what dies with them is not the loader's.
_SPARED = ("resource_tracker", "multiprocessing.forkserver")
# What a process is for, by the module of which a bare interpreter runs ``main``.
ROLES = {
    "fusionloader.cache.holder_process": "cache holder",
    "fusionloader.data.read_ahead.reader": "reader",
    "fusionloader.gpu.worker": "GPU worker",
    "fusionloader.sharing.jobs.coordinator": "coordinator",
    "fusionloader.sharing.pool.worker": "pool worker",
    "fusionloader.sharing.ranks.global_manager": "global manager",
    "fusionloader.sharing.remote.proxy.process": "remote proxy",
    "fusionloader.sharing.remote.ray_control.process": "Ray's control",
    "fusionloader.workers.native_worker": "worker",
}


class Hang(AssertionError):
    """Nothing came within the limit; the message has where everybody stood."""


class Trainer:
    """A process of ``epoch_process.py``."""

    def __init__(self, starter: Starter, setting: Setting, environment: dict[str, str]) -> None:
        self.setting = setting
        self._complaints = Path(setting.folder) / f"stderr-{setting.rank}-{time.monotonic_ns()}"
        self._errors = os.open(self._complaints, os.O_WRONLY | os.O_CREAT)
        command = [str(SCRIPT), json.dumps(asdict(setting))]
        stdout, theirs = os.pipe()
        self.script = starter.start(
            command, PATH, {**os.environ, **environment}, str(TESTS.parent), (theirs, self._errors)
        )
        os.close(theirs)
        os.close(self._errors)
        self.script.stdout.close()
        self._answers, self._text, self._told = stdout, b"", -1  # the number of the last command
        self.spared: set[int] = set()  # processes that training's own code has forked
        self.seen: dict[int, float] = {}  # processes of it, and when they were made
        self.parts: list[dict[str, Any]] = []

    def hello(self) -> None:
        """Waits until it has made its loaders."""
        self.parts = self.answer()["parts"]

    @property
    def complaints(self) -> str:
        """What it has written to standard error."""
        return self._complaints.read_text(errors="replace")

    def tell(self, name: str, *arguments: Any) -> None:
        """Has it do something."""
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps([name, *arguments]), file=self.script.stdin, flush=True)
            self._told += 1

    def ask(
        self, name: str, *arguments: Any, waiting: Callable[[float], None] | None = None
    ) -> Any:
        """Has it do something; returns what came of it."""
        self.tell(name, *arguments)
        return self.answer(waiting)

    def answered(self, seconds: float) -> bool:
        """Whether an answer has come, or comes in so many seconds."""
        return b"\n" in self._text or bool(select.select([self._answers], [], [], seconds)[0])

    def answer(self, waiting: Callable[[float], None] | None = None) -> Any:
        """Returns an answer; ``waiting`` is called with the seconds that it takes.

        Raises:
            Hang: none comes.
        """
        began = time.monotonic()
        while b"\n" not in self._text:
            waited = time.monotonic() - began
            if waited > LIMIT_SECONDS:
                raise Hang(f"no answer in {waited:.0f} s\n{self.stacks()}")
            if waiting is not None:
                waiting(waited)
            if self.answered(_POLL_SECONDS):
                more = os.read(self._answers, 1 << 20)
                assert more, f"the training process has ended:\n{self.complaints[-3000:]}"
                self._text += more
        line, _, self._text = self._text.partition(b"\n")
        number, answer = json.loads(line)
        # One may come twice.
        return answer if number == self._told else self.answer(waiting)

    def processes(self) -> list[psutil.Process]:
        """What it, and what it has started, has started, but Python's own helpers."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.script.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    command = " ".join(child.cmdline())
                    self.seen.setdefault(child.pid, child.create_time())
                    if (
                        child.pid not in self.spared
                        and child.status() != psutil.STATUS_ZOMBIE
                        and not any(name in command for name in _SPARED)
                    ):
                        found.append(child)
        return sorted(found, key=lambda child: child.pid)

    def cpu_seconds(self) -> float:
        """That its processes have worked."""
        total = 0.0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def left(self) -> list[int]:
        """Processes of it that are there still."""
        found = []
        for pid, made in self.seen.items():
            with contextlib.suppress(psutil.NoSuchProcess):
                if psutil.Process(pid).create_time() == made and not gone(pid):
                    found.append(pid)
        return found

    def stacks(self) -> str:
        """Where its threads, and those of its processes, stand."""
        self.script.send_signal(signal.SIGUSR1)
        time.sleep(1)  # it writes them by itself
        told = [f"training process {self.script.pid}:\n{self.complaints[-6000:]}"]
        pyspy = shutil.which("py-spy")
        for process in self.processes():
            with contextlib.suppress(psutil.Error, OSError):
                wchan = Path(f"/proc/{process.pid}/wchan").read_text()
                told.append(f"{role_of(process)} {process.pid}: {process.status()} {wchan}")
                if pyspy is not None:
                    command = [pyspy, "dump", "--pid", str(process.pid)]
                    told.append(subprocess.run(command, capture_output=True, text=True).stdout)
        return "\n".join(told)

    def end(self) -> None:
        """Closes its input, and sees that it ends as it should."""
        self.script.stdin.close()
        assert self.script.wait(LIMIT_SECONDS) == 0, self.complaints[-3000:]

    def kill(self) -> None:
        """Ends whatever is left of it."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.script.kill()
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.script.stdin.close()
        os.close(self._answers)


def role_of(process: psutil.Process) -> str:
    """Returns what a process is for."""
    with contextlib.suppress(psutil.Error):
        command = " ".join(process.cmdline())
        if found := re.search(r"^from (fusionloader\S+) import main$", command, re.MULTILINE):
            return ROLES[found[1]]
        if "-m fusionloader worker" in command:
            return "remote worker"
        return "spawned worker" if "multiprocessing.spawn" in command else "forked worker"
    return "ended"
