"""Notices user code that asks for its rank: in another rank it may make other samples."""

from __future__ import annotations

import os
import sys
from typing import Any

_VARIABLES = frozenset(
    {
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"),
        *("SLURM_PROCID", "SLURM_LOCALID", "PMI_RANK", "PMIX_RANK"),
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    }
)

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
    environment: Any = type(os.environ)
    read = environment.__getitem__

    def read_noticing(self: Any, key: Any) -> Any:
        if key in _VARIABLES:
            _note()
        return read(self, key)

    environment.__getitem__ = read_noticing
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    ask = getattr(distributed, "_get_default_group", None)  # which get_rank() calls
    if ask is None:
        return

    def ask_noticing() -> Any:
        _note()
        return ask()

    distributed._get_default_group = ask_noticing


def _note() -> None:
    global _found
    _found = True
