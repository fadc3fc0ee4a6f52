"""User code that raises, exits, crashes, or takes all memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos import traps
from chaos.checks import Excuse
from chaos.faults.fault import TRAPS, Fault

if TYPE_CHECKING:
    from chaos.run import Run
    from chaos.trainer import Trainer

_GROUP_BYTES = 64 << 20


def _trap(what: str):
    def strike(run: Run, trainer: Trainer, part: int) -> bool:
        places = run.kind.traps
        if what in (traps.EXITS, traps.CRASHES):  # a process that can be replaced
            if run.kind.in_training:
                return False
            places = tuple(set(places) & {"sample", "transform", "collate"})
        place = run.chance.choice(sorted(places))
        number = run.set_trap(place, what)
        if what == traps.RAISES:
            # Of a stream, and of a sampler, nothing comes after an exception. A worker whose
            # `worker_init_fn` has raised is replaced, and all batches come.
            ends = place in run.kind.ends_with
            takes = place != "worker_init_fn"
            error = traps.error_of(number, place)
            run.checks.excuse(Excuse(error, ends=ends, takes=takes, times=1))
        return False  # it is counted when somebody has stepped into it

    return strike


def _run_out_of_memory(run: Run, trainer: Trainer, part: int) -> bool:
    """The kernel kills a worker in a control group with little memory."""
    place = next((name for name in ("sample", "transform") if name in run.kind.traps), None)
    group = run.memory_group(_GROUP_BYTES)
    if group is None or place is None or run.kind.in_training:
        return False
    run.set_trap(place, traps.HUNGRY, str(group))
    return False


_DONE_BY = {
    traps.RAISES: _trap(traps.RAISES),
    traps.EXITS: _trap(traps.EXITS),
    traps.CRASHES: _trap(traps.CRASHES),
    traps.HUNGRY: _run_out_of_memory,
}
FAULTS = tuple(Fault(traps.FAULTS[what], do, TRAPS) for what, do in _DONE_BY.items())
