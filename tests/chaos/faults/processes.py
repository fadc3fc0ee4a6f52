"""Processes that die, stop, or may open no more files."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from typing import TYPE_CHECKING

from chaos.checks import Excuse
from chaos.faults.fault import Fault
from chaos.trainer import role_of

if TYPE_CHECKING:
    import psutil

    from chaos.run import Run
    from chaos.trainer import Trainer

TOO_MANY = "(?:[Tt]oo many open files|EMFILE)"
# A worker's error names the sample, if it is one's, behind its first line.
IN_WORKER = r"(?:\bCaught [^\n]*\n(?:Sample: index (?P<index>\d+)\b)?|\bwas left out: ).*"

_COMPUTE_SECONDS = 1.0


def _victim(run: Run) -> psutil.Process | None:
    found = run.victims()
    return run.chance.choice(found) if found else None


def _signalled(number: signal.Signals):
    def strike(run: Run, trainer: Trainer, part: int) -> bool:
        victim = _victim(run)
        return victim is not None and run.signal(victim, number)

    return strike


def _kill_all(run: Run, trainer: Trainer, part: int) -> bool:
    """All of one training process at once."""
    struck = [run.signal(victim, signal.SIGKILL) for victim in trainer.processes()]
    return any(struck)


def _stop(run: Run, trainer: Trainer, part: int) -> bool:
    victim = _victim(run)
    if victim is None or not run.signal(victim, signal.SIGSTOP):
        return False
    run.later(run.chance.randint(1, 4), run.let_go)
    return True


def too_many_in_worker(run: Run) -> Excuse:
    """Returns that a worker may open nothing: at most an error for each batch.

    A stream gives nothing behind an error.
    """
    ends = "sample" in run.kind.ends_with
    return Excuse(IN_WORKER + TOO_MANY, ends=ends, takes=None)


def _few_descriptors(run: Run, trainer: Trainer, part: int) -> bool:
    victim = _victim(run)
    if victim is None:
        return False
    with contextlib.suppress(OSError):
        healthy = resource.getrlimit(resource.RLIMIT_NOFILE)  # the victim may have few already
        used = len(os.listdir(f"/proc/{victim.pid}/fd"))
        resource.prlimit(victim.pid, resource.RLIMIT_NOFILE, (used, healthy[1]))
        run.note(f"{used} descriptors for {role_of(victim)} {victim.pid}")
        excuse = run.checks.excuse(too_many_in_worker(run))

        def heal() -> None:
            with contextlib.suppress(OSError):
                resource.prlimit(victim.pid, resource.RLIMIT_NOFILE, healthy)
            run.checks.mended(excuse)

        run.later(run.chance.randint(1, 3), heal)
        return True
    return False


def _kill_meanwhile(run: Run, trainer: Trainer, part: int) -> bool:
    """While training does not look."""
    found = trainer.processes()
    trainer.tell("compute", _COMPUTE_SECONDS)
    time.sleep(run.chance.uniform(0, _COMPUTE_SECONDS))
    struck = bool(found) and run.signal(run.chance.choice(found), signal.SIGKILL)
    trainer.answer()
    return struck


FAULTS = (
    Fault("SIGKILL", _signalled(signal.SIGKILL), weight=6),
    Fault("SIGKILL of all workers", _kill_all, weight=2),
    Fault("SIGKILL while training computes", _kill_meanwhile, asks=True),
    Fault("SIGSEGV", _signalled(signal.SIGSEGV)),
    Fault("SIGBUS", _signalled(signal.SIGBUS)),
    Fault("SIGSTOP, SIGCONT", _stop, weight=2),
    Fault("too few descriptors", _few_descriptors),
)
