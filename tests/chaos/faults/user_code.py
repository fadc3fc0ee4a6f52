"""User code that raises, exits, crashes, or takes all memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos import traps
from chaos.faults.fault import TRAPS, Fault

if TYPE_CHECKING:
    from chaos.run import Run
    from chaos.trainer import Trainer

_GROUP_BYTES = 64 << 20
# Of a stream, and of a sampler, nothing comes after an exception.
_ENDS = ("sampler", "worker_init_fn")


def _trap(what: str):
    def strike(run: Run, trainer: Trainer, part: int) -> bool:
        places = run.kind.traps
        if what in (traps.EXITS, traps.CRASHES):  # a process that can be replaced
            places = tuple(set(places) & {"sample", "transform", "collate"})
        place = run.chance.choice(sorted(places))
        traps.set_trap(str(run.folder), place, what)
        run.note(f"a trap in the {place} that {what}")
        if what == traps.RAISES:
            ends = place in _ENDS or run.kind.name == "stream"
            # What says an index is excused by that sample alone.
            run.checks.excuse(rf"Sprung.*a trap in the {place}(?! of sample)", ends=ends)
            if ends:
                run.checks.excuse(rf"Sprung.*a trap in the {place}", ends=True)
        elif not run.kind.replaces_workers:
            run.checks.excuse("killed by signal|exited unexpectedly", ends=True)
        return False  # it is counted when somebody has stepped into it

    return strike


def _run_out_of_memory(run: Run, trainer: Trainer, part: int) -> bool:
    """The kernel kills a worker in a control group with little memory."""
    place = next((name for name in ("sample", "transform") if name in run.kind.traps), None)
    group = run.memory_group(_GROUP_BYTES)
    if group is None or place is None:
        return False
    traps.set_trap(str(run.folder), place, traps.HUNGRY, str(group))
    if not run.kind.replaces_workers:
        run.checks.excuse("killed by signal|exited unexpectedly", ends=True)
    return False


_DONE_BY = {
    traps.RAISES: _trap(traps.RAISES),
    traps.EXITS: _trap(traps.EXITS),
    traps.CRASHES: _trap(traps.CRASHES),
    traps.HUNGRY: _run_out_of_memory,
}
FAULTS = tuple(Fault(traps.FAULTS[what], do, TRAPS) for what, do in _DONE_BY.items())
