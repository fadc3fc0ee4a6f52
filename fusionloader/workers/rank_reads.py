"""Notices user code that asks for its rank: in another rank it may make other samples."""

from __future__ import annotations

import os
import sys
from typing import Any

_NAMES = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
    *("PMI_RANK", "PMIX_RANK", "MPI_LOCALRANKID", "PALS_RANKID", "PALS_LOCAL_RANKID"),
    *(f"OMPI_COMM_WORLD_{which}" for which in ("RANK", "LOCAL_RANK", "NODE_RANK")),
    *(f"MV2_COMM_WORLD_{which}" for which in ("RANK", "LOCAL_RANK")),
    *("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID"),
}
_VARIABLES = frozenset({*_NAMES, *(name.encode() for name in _NAMES)})  # of os.environb, too

_watches = _found = False


def found() -> bool:
    """Whether any code of this process has asked since ``watch``."""
    return _found


def watch() -> None:
    """Notices from now on who reads a variable with a rank, or asks ``torch.distributed``.

    What was read before, and lies in global variables, is not noticed.
    """
    global _watches
    if _watches:
        return
    _watches = True
    environment: Any = type(os.environ)  # and of os.environb
    read = environment.__getitem__

    def read_noticing(self: Any, key: Any) -> Any:
        if key in _VARIABLES:
            _note()
        return read(self, key)

    environment.__getitem__ = read_noticing
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    # get_rank() calls the first, and the second if there is a group.
    _notice_calls(distributed, "_get_default_group")
    _notice_calls(getattr(distributed, "ProcessGroup", None), "rank")


def _notice_calls(owner: Any, name: str) -> None:
    call = getattr(owner, name, None)
    if call is None:
        return

    def call_noticing(*arguments: Any) -> Any:
        _note()
        return call(*arguments)

    setattr(owner, name, call_noticing)


def _note() -> None:
    global _found
    _found = True
