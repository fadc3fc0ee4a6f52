"""Whether the native part and anonymous shared memory are there."""

from __future__ import annotations

import importlib
import os


def missing() -> str | None:
    """Returns what a FusionLoader needs and this machine has not, ``None`` if it has everything."""
    if not hasattr(os, "posix_fallocate"):
        return "os.posix_fallocate (of Linux)"
    try:
        importlib.import_module("fusionloader._native")
    except ImportError as error:
        return f"fusionloader._native ({error})"
    return None
