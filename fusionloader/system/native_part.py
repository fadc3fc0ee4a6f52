"""Finds out whether the native extension works on this machine."""

from __future__ import annotations

import functools
import importlib
import os
import threading

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
    failed = []

    def load() -> None:
        try:
            importlib.import_module(_NAME)
        except ImportError as error:
            failed.append(error)

    thread = threading.Thread(target=load, name="fusionloader-native")
    try:
        thread.start()
    except RuntimeError:  # no more threads
        load()
    else:
        thread.join()
    return failed[0] if failed else None
