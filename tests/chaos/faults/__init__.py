"""All faults."""

from chaos.faults import consumers, files, processes, user_code
from chaos.faults.fault import TRAPS, Fault
from chaos.kinds.setting import EpochKind

FAULTS = (*processes.FAULTS, *consumers.FAULTS, *user_code.FAULTS, *files.FAULTS)


def faults_of(kind: EpochKind, only_kills: bool = False) -> list[Fault]:
    """Returns what a kind is struck by, each as often as its weight."""
    groups = {None, *kind.subject_to, *([TRAPS] if kind.traps else [])}
    chosen = [
        fault
        for fault in FAULTS
        if fault.group in groups and not (only_kills and not fault.name.startswith("SIGKILL"))
    ]
    return [fault for fault in chosen for _ in range(fault.weight)]
