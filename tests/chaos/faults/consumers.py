"""Training that pauses, forks, or leaves an epoch; a clock that jumps."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import signal
from typing import TYPE_CHECKING

from chaos.checks import Excuse
from chaos.faults.fault import Fault
from chaos.faults.processes import TOO_MANY, too_many_in_worker

if TYPE_CHECKING:
    from chaos.run import Run
    from chaos.trainer import Trainer

_CPU_SECONDS = 0.1
_YEAR = 365 * 86400.0
_MOST_STEPS = 3.2  # as a power of ten: what `next` makes, if it waits a little


def _pause(run: Run, trainer: Trainer, part: int) -> bool:
    """Until its workers have worked for a while, or have no more to do."""
    run.pause(trainer, _CPU_SECONDS)
    return True


def _fork(run: Run, trainer: Trainer, part: int) -> bool:
    status = run.ask(trainer, "fork")
    assert status == 0, f"a forked child has ended with {status}: 1 if its batches had changed"
    return True


def _fork_child(run: Run, trainer: Trainer, part: int) -> bool:
    """A child that goes on to hold the batches that its parent drops."""
    changed, child = run.ask(trainer, "fork_child")
    trainer.spared.add(child)
    run.checks.kept(changed)
    run.later(run.chance.randint(3, 20), lambda: run.look(trainer))
    return True


def _interrupt(run: Run, trainer: Trainer, part: int) -> bool:
    """At one of the first steps as likely as at one of many."""
    kind = run.chance.choice(["KeyboardInterrupt", "MemoryError", "OSError"])
    run.interrupt(kind, int(10 ** run.chance.uniform(0, _MOST_STEPS)))
    return False  # it is counted when so many steps were made


def _open_nothing(run: Run, trainer: Trainer, part: int) -> bool:
    """While training takes a batch, maybe with a worker to be replaced."""
    found = trainer.processes()
    if found and run.chance.random() < 0.5:
        run.signal(run.chance.choice(found), signal.SIGKILL)
    pid = trainer.script.pid
    opened = {int(fd) for fd in os.listdir(f"/proc/{pid}/fd")}
    free = next(fd for fd in itertools.count() if fd not in opened)
    healthy = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, healthy[1]))
    says = rf"\A(?!.*\bCaught )(?=.*{TOO_MANY})" + run.of_sample
    own = run.checks.excuse(Excuse(says, takes=False))
    workers = run.checks.excuse(too_many_in_worker(run))

    def heal() -> None:
        # Training first: workers that it starts meanwhile have its limit.
        with contextlib.suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, healthy)
        for process in trainer.processes():
            with contextlib.suppress(OSError):
                resource.prlimit(process.pid, resource.RLIMIT_NOFILE, healthy)
        if not run.kind.in_training:
            run.checks.mended(workers)

    def expire() -> None:
        own.times = 0
        if run.kind.in_training:  # it may have been in the next epoch already
            run.checks.mended(workers)

    run.for_a_moment(heal)
    run.later(3, expire)  # a thread of the loader may find it before, and say so then
    return True


def _leave(run: Run, trainer: Trainer, part: int) -> bool:
    if not run.may_begin_anew(trainer, part):
        return False
    run.leave(trainer, part)
    return True


def _jump(run: Run, trainer: Trainer, part: int) -> bool:
    run.laboratory.system.jump(run.chance.choice([-_YEAR, -3600.0, 3600.0, _YEAR]))
    return True


def _drop_kept(run: Run, trainer: Trainer, part: int) -> bool:
    run.checks.kept(run.ask(trainer, "kept"))
    return True


FAULTS = (
    Fault("training pauses", _pause, asks=True),
    Fault("training forks", _fork, asks=True),
    Fault("training forks and its child looks later", _fork_child, asks=True),
    Fault("an exception in training", _interrupt, asks=True, weight=3),
    Fault("training may open nothing for a moment", _open_nothing, weight=2),
    Fault("the epoch is left", _leave, asks=True),
    Fault("batches that were kept are dropped", _drop_kept, asks=True),
    Fault("the clock jumps", _jump),
)
