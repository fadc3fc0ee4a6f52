"""DALI's allocations in borrowed memory, if the library for that was built.

DALI first allocates memory of its own, then memory in the blocks that ``gpu_memory.pool`` has. It
keeps memory as long as its pipelines live: ``prebuilt.drop_all`` empties the blocks.
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

_WHY_BYTES = 1000  # of the library's error message
# Devices. An installed library stays for the life of the process: decoders refer to it.
_installed: set[int] = set()
_nothing_to_borrow = False


def install(device: int) -> bool:
    """Lets DALI borrow on a CUDA device; must be called before its first pipeline there is built.

    Returns whether DALI borrows. If not, the log says why in one line, and DALI is unchanged.
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
    """Installs a library into DALI ``version``; returns an error in words, ``None`` if it works."""
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
    """Whether work that ran out of memory might find some in blocks that are still to be lent."""
    return device in _installed and pool.is_empty() and not _nothing_to_borrow


def release_unused_memory() -> None:
    """Returns memory in DALI's pool that no pipeline uses to the device."""
    from nvidia.dali import backend

    native: Any = backend
    native.ReleaseUnusedMemory()


@contextmanager
def nothing_to_borrow() -> Iterator[None]:
    """Context in which no more memory can be expected: training has nothing to lend."""
    global _nothing_to_borrow
    _nothing_to_borrow = True
    try:
        yield
    finally:
        _nothing_to_borrow = False
