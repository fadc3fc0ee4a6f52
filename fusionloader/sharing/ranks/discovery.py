"""The ranks of a job on this machine: how they find each other, and no other process.

``torchrun`` sets a training process's rank in environment variables. They, the user and the
namespaces determine the name of a Unix socket in Linux's abstract namespace. Such a socket needs no
folder and disappears with the process that listens on it.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

from fusionloader.system.job_identity import is_identified, job_identity

log = logging.getLogger("fusionloader.ranks")


@dataclass(frozen=True, slots=True)
class JobRanks:
    """A rank's number and how many ranks there are on the machine.

    ``address`` is the name of the socket that the global manager listens on.
    """

    rank: int
    count: int
    address: str


def ranks_here(environ: Mapping[str, str] = os.environ) -> JobRanks | None:
    """Returns this process's rank on its machine, ``None`` where it is the only one.

    Logs a warning, once, where the environment is incomplete.
    """
    if "LOCAL_RANK" not in environ:
        return None
    try:
        rank, count = int(environ["LOCAL_RANK"]), int(environ["LOCAL_WORLD_SIZE"])
    except KeyError:
        _warn("LOCAL_RANK is set and LOCAL_WORLD_SIZE is not")
        return None
    except ValueError:
        _warn("LOCAL_RANK or LOCAL_WORLD_SIZE is no number")
        return None
    if count < 2:
        return None
    if not 0 <= rank < count:
        _warn(f"LOCAL_RANK is {rank} and LOCAL_WORLD_SIZE is {count}")
        return None
    if not is_identified(environ):
        _warn("neither TORCHELASTIC_RUN_ID nor MASTER_PORT identifies this job")
        return None
    return JobRanks(rank, count, _address(environ))


def _address(environ: Mapping[str, str]) -> str:
    return f"fusionloader-{hashlib.sha256(job_identity(environ).encode()).hexdigest()[:32]}"


@functools.cache
def _warn(what: str) -> None:
    log.warning("ranks of this machine do not share workers: %s", what)
