"""DALI's allocations in borrowed memory, where the library for it was built.

DALI asks for its own memory first, then for room in the blocks that ``memory.pool`` has at the
moment. It keeps what it has for as long as its pipelines live: ``prebuilt.drop_all`` is how blocks
get empty again.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fusionloader.system.gpu_memory import pool
from fusionloader.transforms.executors.dali.memory.resource_library import COMMAND, built_library

log = logging.getLogger("fusionloader.gpu")

_WHY_BYTES = 1000
# DALI's memory is the process's, and what is installed stays: decoders refer to it.
_installed: set[int] = set()
_asked_in_vain = False


def install(device: int) -> bool:
    """Lets DALI borrow on a CUDA device; to be called before its first pipeline there is built.

    Returns whether it does; if not, one line of the log says why, and DALI is as it was.
    """
    if device in _installed:
        return True
    try:
        from nvidia import dali
    except ImportError as error:
        log.info("DALI borrows no memory: %s", error)
        return False
    library = built_library(dali.__version__)
    if library is None:
        log.info("DALI borrows no memory: for %s, %s was not run", dali.__version__, COMMAND)
        return False
    why = install_library(library, dali.__version__, device)
    if why is not None:
        log.warning("DALI borrows no memory: %s", why)
        return False
    _installed.add(device)
    log.info(
        "DALI %s borrows memory on device %d where its own has run out", dali.__version__, device
    )
    return True


def install_library(library: Path, version: str, device: int) -> str | None:
    """Installs a library into DALI of that version; returns why it cannot, in words."""
    try:
        loaded = ctypes.CDLL(str(library))
        built_for, install = loaded.fl_dali_version, loaded.fl_dali_install
    except (OSError, AttributeError) as error:
        return f"{error}; build it again with: {COMMAND}"
    built_for.restype = ctypes.c_char_p
    if (found := built_for().decode()) != version:
        return f"{library} is for DALI {found}, not {version}; build it again with: {COMMAND}"
    extension = ctypes.CDLL(pool.LIBRARY)
    install.restype = ctypes.c_bool
    why = ctypes.create_string_buffer(_WHY_BYTES)
    allocate, retire = getattr(extension, pool.MALLOC), getattr(extension, pool.RETIRE)
    if install(device, allocate, retire, why, ctypes.c_size_t(_WHY_BYTES)):
        return None
    return " ".join(why.value.decode(errors="replace").split())


def may_borrow(device: int | None) -> bool:
    """Whether what ran out of memory now might have more of it in blocks that are not there yet."""
    return device in _installed and pool.is_empty() and not _asked_in_vain


def release_unused_memory() -> None:
    """Returns the memory of DALI's pool that no pipeline uses to the device."""
    from nvidia.dali import backend

    native: Any = backend
    native.ReleaseUnusedMemory()


@contextmanager
def in_vain() -> Iterator[None]:
    """Within it nothing more can be expected: training was asked, and had nothing to lend."""
    global _asked_in_vain
    _asked_in_vain = True
    try:
        yield
    finally:
        _asked_in_vain = False
