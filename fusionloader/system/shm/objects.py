"""Shared-memory objects without names, which are freed with the last process that has them.

Processes get an object by inheritance, or as a descriptor over a socket; see ``anonymous_memory``
for how it is made. A memfd is sealed against shrinking, so no process can make another process's
access fail with SIGBUS.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
from typing import ClassVar

from fusionloader import _native
from fusionloader.system.amounts import mib
from fusionloader.system.limits import anonymous_memory
from fusionloader.system.limits.free_memory import FreeMemory, free_memory
from fusionloader.system.shm.descriptor import OwnedDescriptor

PAGE = 4096

_PUNCH_HOLE, _KEEP_SIZE = 2, 1  # of fallocate
_libc = ctypes.CDLL(None, use_errno=True)
_CHECKED_BYTES = 1 << 20  # from this size on, free memory is checked, which takes 0.2 ms


# In this order: Python 3.10 frees a MemoryError, also of a class with that as its first base, while
# the garbage collector still sees it. If the collector runs meanwhile, it is freed twice.
class SharedMemoryExhausted(RuntimeError, MemoryError):
    """There is too little shared memory for a request."""


def create(
    size: int, name: str = "memory", *, grows: bool = False, allocated: int | None = None
) -> int:
    """Returns a file descriptor of ``size`` zero bytes of shared memory; the caller closes it.

    The size is final unless it ``grows``. Pages are allocated when they are written or reserved. In
    ``/dev/shm`` the first ``allocated`` bytes, by default all, are allocated at once, and the
    others must be reserved. ``/proc`` shows ``name`` and this process's id.

    Raises:
        SharedMemoryExhausted: there is too little memory, or objects may not be that large.
    """
    try:
        return anonymous_memory.create(name, size, grows=grows, allocated=allocated)
    except OSError as error:
        raise_exhausted(error, size, f"an object ({name})")
        raise


class ControlBlock(OwnedDescriptor):
    """The control block of a queue. The rings for traces are allocated when a trace begins.

    Attributes:
        fd: its file descriptor, for other processes to map.
    """

    def __init__(self, records: int, ring_size: int) -> None:
        """Makes the control block.

        Raises:
            SharedMemoryExhausted: there is too little memory.
        """
        size = _native.ManagerQueue.control_bytes(records, ring_size)
        untraced = _native.ManagerQueue.untraced_bytes(records, ring_size)
        self.fd = create(size, "queue", allocated=untraced)


def reserve(fd: int, offset: int, size: int) -> None:
    """Allocates bytes of an object, which grows if needed.

    Without this, a process that writes when no memory is left would be killed.

    Raises:
        SharedMemoryExhausted: there is too little memory.
    """
    if size >= _CHECKED_BYTES:
        check_room(size, "batches")  # beyond a control group's limit, the kernel would kill
    allocate(fd, offset, size)


def allocate(fd: int, offset: int, size: int, what: str = "batches") -> None:
    """Allocates as ``reserve`` does, but without a check of free memory.

    Raises:
        SharedMemoryExhausted: there is too little memory.
    """
    try:
        os.posix_fallocate(fd, offset, size)
    except OSError as error:
        raise_exhausted(error, size, what)
        raise


def discard(fd: int, offset: int, size: int) -> bool:
    """Returns memory to the system; returns whether that succeeded.

    The object keeps its size, and the bytes read as zeros.
    """
    mode = _PUNCH_HOLE | _KEEP_SIZE
    return bool(_libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(size)) == 0)


def free() -> int:
    return free_memory().nbytes


def check_room(needed: int, what: str) -> None:
    """Raises SharedMemoryExhausted if fewer than ``needed`` bytes of memory are free."""
    found = free_memory()
    if found.nbytes < needed:
        raise SharedMemoryExhausted(advice(needed, found, what))


def advice(needed: int, found: FreeMemory, what: str = "batches") -> str:
    """Returns the error's text: bytes needed, bytes free by which limit, and what to do."""
    return (
        f"FusionLoader needs {mib(needed)} of shared memory for {what}, but {mib(found.nbytes)} "
        f"are free by {found.limit}. {found.remedy}, or lower batch_size, prefetch_factor or "
        f"num_workers."
    )


def raise_exhausted(error: OSError, size: int, what: str) -> None:
    """Raises SharedMemoryExhausted if an error was caused by too little memory."""
    if error.errno in (errno.EFBIG, errno.ENOSPC, errno.ENOMEM):
        found = _largest_file() if error.errno == errno.EFBIG else free_memory()
        raise SharedMemoryExhausted(advice(size, found, what)) from error


def _largest_file() -> FreeMemory:
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = "the limit of a file's size (RLIMIT_FSIZE), which counts for shared memory"
    return FreeMemory(most, limit, "Raise it (ulimit -f unlimited)")


class SharedPage(OwnedDescriptor):
    """A page of shared memory, mapped into this process.

    Attributes:
        nbytes: size in bytes; subclasses may set a multiple of a page.
        fd: file descriptor, for other processes to map.
    """

    nbytes: ClassVar[int] = PAGE

    def __init__(self, fd: int) -> None:
        """Maps the page behind a descriptor, and takes ownership of the descriptor."""
        self.fd = fd
        self._page = memoryview(_native.SharedMapping(fd, 0, self.nbytes))

    @classmethod
    def _made(cls, name: str, begins: bytes = b"") -> int:
        """Makes a page that starts with ``begins``, the rest zeros; returns its descriptor."""
        fd = create(cls.nbytes, name)
        os.pwrite(fd, begins, 0)
        return fd
