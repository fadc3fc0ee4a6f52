"""Training that pauses, forks, or leaves an epoch; a clock that jumps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.faults.fault import Fault

if TYPE_CHECKING:
    from chaos.run import Run
    from chaos.trainer import Trainer

_CPU_SECONDS = 0.1
_YEAR = 365 * 86400.0


def _pause(run: Run, trainer: Trainer, part: int) -> bool:
    """Until its workers have worked for a while, or have no more to do."""
    run.pause(trainer, _CPU_SECONDS)
    return True


def _fork(run: Run, trainer: Trainer, part: int) -> bool:
    status = run.ask(trainer, "fork")
    assert status == 0, f"a forked child ended with {status}"
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
    Fault("the epoch is left", _leave, asks=True),
    Fault("batches that were kept are dropped", _drop_kept, asks=True),
    Fault("the clock jumps", _jump),
)
