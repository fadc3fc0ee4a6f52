"""What is done with a borrower that does not return a block in time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, get_args

WhenOverdue = Literal["kill", "wait", "quarantine"]
"""What to do with a late borrower.

``"kill"``: if it is a child of this process it is killed, and the block taken back when nothing of
it runs any more; if it is not, or shares its CUDA context with others under MPS, the block stays
out. ``"wait"``: as long as it takes. ``"quarantine"``: the block stays out, which is a
``NotReturnedError``; it can be reclaimed again later."""


def check_when_overdue(value: str) -> None:
    """Raises ValueError unless it is one of the three."""
    if value not in get_args(WhenOverdue):
        raise ValueError(f"when_overdue should be one of {get_args(WhenOverdue)}, not {value!r}")


def under_mps() -> bool:
    """Returns whether CUDA's Multi-Process Service runs here.

    Its clients share one context on the device: killing one of them may take the others with it.
    """
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    return Path(pipes, "control").exists()
