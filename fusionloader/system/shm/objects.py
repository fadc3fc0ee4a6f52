"""Shared memory without names: anonymous, and freed with the last process that has it.

Processes get it by inheritance, or as a descriptor over a socket. ``anonymous_memory`` says what it
is, and what it is where ``memfd_create`` is refused. A memfd is sealed against shrinking: no
process that has it can make another one's access fail with SIGBUS.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource

from fusionloader import _native
from fusionloader.system.amounts import mib
from fusionloader.system.limits import anonymous_memory
from fusionloader.system.limits.free_memory import FreeMemory, free_memory

_PUNCH_HOLE, _KEEP_SIZE = 2, 1  # of fallocate
_libc = ctypes.CDLL(None, use_errno=True)
_ASKED_FROM = 1 << 20  # bytes; to ask what is free takes 0.2 ms


class SharedMemoryExhausted(RuntimeError):
    """There is too little memory for what was asked for."""


def create(
    size: int, name: str = "memory", *, grows: bool = False, allocated: int | None = None
) -> int:
    """Returns a file descriptor of ``size`` bytes of shared memory; the caller closes it.

    Its bytes are zeros. Its size is final unless it ``grows``. Pages are allocated when they are
    written or reserved. In ``/dev/shm`` the first ``allocated`` bytes are allocated at once, all
    unless given, and others have to be reserved. ``/proc`` shows ``name`` and this process's id.

    Raises:
        SharedMemoryExhausted: objects may not be as large, or there is no room.
    """
    try:
        return anonymous_memory.create(name, size, grows=grows, allocated=allocated)
    except OSError as error:
        raise_exhausted(error, size, f"an object ({name})")
        raise


def create_queue(records: int, ring_size: int) -> int:
    """Returns a file descriptor of a queue's control block; the caller closes it.

    What traces are written into is allocated when one begins.

    Raises:
        SharedMemoryExhausted: there is no room.
    """
    size = _native.ManagerQueue.control_bytes(records, ring_size)
    untraced = _native.ManagerQueue.untraced_bytes(records, ring_size)
    return create(size, "queue", allocated=untraced)


def reserve(fd: int, offset: int, size: int) -> None:
    """Allocates the bytes, growing the object.

    Without this, a write when there is no memory left would end whoever writes.

    Raises:
        SharedMemoryExhausted: there is no room.
    """
    if size >= _ASKED_FROM:
        check_room(size, "batches")  # beyond a control group's limit the kernel kills
    allocate(fd, offset, size)


def allocate(fd: int, offset: int, size: int, what: str = "batches") -> None:
    """Does what ``reserve`` does, for who has checked that there is room.

    Raises:
        SharedMemoryExhausted: there is none.
    """
    try:
        os.posix_fallocate(fd, offset, size)
    except OSError as error:
        raise_exhausted(error, size, what)
        raise


def discard(fd: int, offset: int, size: int) -> bool:
    """Returns the bytes' memory to the system; whether that was possible.

    The size of the object stays. Whoever reads the bytes finds zeros.
    """
    mode = _PUNCH_HOLE | _KEEP_SIZE
    return bool(_libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(size)) == 0)


def free() -> int:
    """Returns the bytes of memory that this process may still allocate."""
    return free_memory().nbytes


def check_room(needed: int, what: str) -> None:
    """Raises SharedMemoryExhausted when fewer than ``needed`` bytes of memory are free."""
    found = free_memory()
    if found.nbytes < needed:
        raise SharedMemoryExhausted(advice(needed, found, what))


def advice(needed: int, found: FreeMemory, what: str = "batches") -> str:
    """Returns the error's text: the bytes needed, the bytes free and by which limit, what to do."""
    return (
        f"FusionLoader needs {mib(needed)} of shared memory for {what}, but {mib(found.nbytes)} "
        f"are free by {found.limit}. {found.remedy}, or lower batch_size, prefetch_factor or "
        f"num_workers."
    )


def raise_exhausted(error: OSError, size: int, what: str) -> None:
    """Raises SharedMemoryExhausted in an error's place, if too little memory is its cause."""
    if error.errno in (errno.EFBIG, errno.ENOSPC, errno.ENOMEM):
        found = _largest_file() if error.errno == errno.EFBIG else free_memory()
        raise SharedMemoryExhausted(advice(size, found, what)) from error


def _largest_file() -> FreeMemory:
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = "the limit of a file's size (RLIMIT_FSIZE), which counts for shared memory"
    return FreeMemory(most, limit, "Raise it (ulimit -f unlimited)")
