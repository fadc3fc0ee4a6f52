"""Finds out whether the native extension works on this machine."""

from __future__ import annotations

import functools
import importlib
import os

from fusionloader.system.own_thread import run_in_own_thread

_NAME = "fusionloader._native"


def missing() -> str | None:
    """Returns what a FusionLoader needs and this machine lacks; ``None`` if it has everything."""
    if not hasattr(os, "posix_fallocate"):
        return "os.posix_fallocate (of Linux)"
    failed = _load()
    return None if failed is None else f"{_NAME} ({failed})"


@functools.cache
def _load() -> ImportError | None:
    """Imports the extension; returns the error if that fails.

    It imports in another thread, because signal handlers run in the main thread: a Ctrl-C during
    the extension's initialization would raise ImportError, and leave it half registered.
    """
    return run_in_own_thread(_import, "fusionloader-native")


def _import() -> ImportError | None:
    try:
        importlib.import_module(_NAME)
    except ImportError as error:
        return error
    return None
