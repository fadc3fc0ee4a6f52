"""DALI's pool of memory, which keeps what pipelines have freed."""

from __future__ import annotations

from typing import Any

from nvidia.dali import backend


def release_unused_memory() -> None:
    """Gives the device what no pipeline holds at the moment."""
    native: Any = backend
    native.ReleaseUnusedMemory()
