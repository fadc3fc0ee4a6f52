"""Processes that die, stop, or may open no more files."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from typing import TYPE_CHECKING

from chaos.faults.fault import Fault

if TYPE_CHECKING:
    import psutil

    from chaos.run import Run
    from chaos.trainer import Trainer


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


def _few_descriptors(run: Run, trainer: Trainer, part: int) -> bool:
    victim = _victim(run)
    # Where bad samples are left out, a batch may lose all of them, and is no batch then.
    if victim is None or run.setting.on_error == "skip":
        return False
    with contextlib.suppress(OSError):
        before = resource.prlimit(victim.pid, resource.RLIMIT_NOFILE)
        used = len(os.listdir(f"/proc/{victim.pid}/fd"))
        resource.prlimit(victim.pid, resource.RLIMIT_NOFILE, (used, before[1]))

        def heal() -> None:
            with contextlib.suppress(OSError):
                resource.prlimit(victim.pid, resource.RLIMIT_NOFILE, before)

        run.checks.excuse(r"[Tt]oo many open files|EMFILE")
        run.later(run.chance.randint(1, 3), heal)
        return True
    return False


FAULTS = (
    Fault("SIGKILL", _signalled(signal.SIGKILL), weight=6),
    Fault("SIGKILL of all workers", _kill_all, weight=2),
    Fault("SIGSEGV", _signalled(signal.SIGSEGV)),
    Fault("SIGBUS", _signalled(signal.SIGBUS)),
    Fault("SIGSTOP, SIGCONT", _stop, weight=2),
    Fault("too few descriptors", _few_descriptors),
)
