"""Identifies the jobs of a user on a machine."""

from __future__ import annotations

import os
from collections.abc import Mapping

# Variables that distinguish the jobs of one user, and the attempts and agents of one job.
_JOB_VARIABLES = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "GROUP_RANK",
)


def is_identified(environ: Mapping[str, str]) -> bool:
    """Whether ``torchrun``'s variables identify this job."""
    return "TORCHELASTIC_RUN_ID" in environ or "MASTER_PORT" in environ


def job_identity(environ: Mapping[str, str]) -> str:
    """Returns a text that all ranks of a job on this machine share, and no other job."""
    # With the namespaces, because descriptors and pids are not valid across them.
    namespaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "mnt")]
    job = [environ.get(name, "") for name in _JOB_VARIABLES]
    return "\0".join([str(os.geteuid()), *namespaces, *job])
