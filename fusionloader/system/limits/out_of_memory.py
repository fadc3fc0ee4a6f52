"""Whether the kernel has killed processes because there was no memory left."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Iterator
from multiprocessing.process import BaseProcess as Process
from pathlib import Path

from fusionloader.system.limits import control_groups
from fusionloader.system.limits.free_memory import free_memory

_VMSTAT = Path("/proc/vmstat")
_NAME = "oom_kill"


class OutOfMemoryKills:
    """Counts from when it is made what the kernel's out-of-memory killer has ended.

    Of this process's control groups where they count that, else of the machine.
    """

    def __init__(self) -> None:
        self._before = _count()

    def explain(self) -> str:
        """Returns what it has done meanwhile and what to do about it; empty if nothing."""
        killed = _count() - self._before
        if killed <= 0:
            return ""
        found = free_memory(shared=False)
        return (
            f"the kernel's out-of-memory killer has ended {killed} of the processes that share "
            f"{found.limit}. {found.remedy}, or lower num_workers, batch_size or prefetch_factor"
        )

    @contextlib.contextmanager
    def named(self, workers: Iterable[Process]) -> Iterator[None]:
        """Adds that to a RuntimeError raised within, where one of ``workers`` was killed."""
        try:
            yield
        except RuntimeError as error:
            killed = any(worker.exitcode == -signal.SIGKILL for worker in workers)
            if killed and (why := self.explain()):
                raise RuntimeError(f"{error}: {why}") from error
            raise


def _count() -> int:
    counts = control_groups.out_of_memory_kills()
    if counts is not None:
        return counts
    with contextlib.suppress(OSError, ValueError):
        return control_groups.numbers_in(_VMSTAT).get(_NAME, 0)
    return 0
