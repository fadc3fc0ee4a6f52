"""Whether the native part and POSIX shared memory are there."""

from __future__ import annotations

import importlib

_NEEDED = ("posix_ipc", "fusionloader._native")


def missing() -> str | None:
    """Returns what a FusionLoader needs and this machine has not, ``None`` if it has everything."""
    for name in _NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            return f"{name} ({error})"
    return None
