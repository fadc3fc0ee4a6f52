"""Shared memory without names: anonymous, and freed with the last process that has it.

Processes get it by inheritance, or as a descriptor over a socket. It is no file of ``/dev/shm``, so
the size of that does not matter, and nobody else can open it. It is sealed against shrinking: no
process that has it can make another one's access fail with SIGBUS.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource

from fusionloader.amounts import mib
from fusionloader.limits.free_memory import FreeMemory, free_memory

_MFD_NOEXEC_SEAL = 8  # of Linux 6.3; systems with vm.memfd_noexec=2 allow nothing else
_REFUSED = (
    "the system call memfd_create, by which FusionLoader makes shared memory, is refused here, as "
    "by a container's seccomp profile: allow it, or use num_workers=0"
)
_PUNCH_HOLE, _KEEP_SIZE = 2, 1  # of fallocate
_libc = ctypes.CDLL(None, use_errno=True)
_ASKED_FROM = 1 << 20  # bytes; to ask what is free takes 0.2 ms


class SharedMemoryExhausted(RuntimeError):
    """There is too little memory for what was asked for."""


def create(size: int, name: str = "memory", *, grows: bool = False) -> int:
    """Returns a file descriptor of ``size`` bytes of shared memory; the caller closes it.

    Its pages are zeros, and are allocated when they are written or reserved. Its size is final
    unless it ``grows``. ``/proc`` shows ``name`` and this process's id with whoever has it.

    Raises:
        SharedMemoryExhausted: objects may not be as large.
    """
    fd = _anonymous(f"fusionloader-{os.getpid()}-{name}")
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, size)
        final = 0 if grows else fcntl.F_SEAL_GROW
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL | final)
    except OSError as error:
        os.close(fd)
        if error.errno == errno.EFBIG:
            raise SharedMemoryExhausted(advice(size, _largest_file())) from error
        raise
    return fd


def _anonymous(name: str) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            raise OSError(error.errno, _REFUSED) from error
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, flags)  # an older kernel


def reserve(fd: int, offset: int, size: int) -> None:
    """Allocates the bytes, growing the object.

    Without this, a write when there is no memory left would end whoever writes.

    Raises:
        SharedMemoryExhausted: there is no room.
    """
    if size >= _ASKED_FROM:
        check_room(size, "batches")  # beyond a control group's limit the kernel kills
    allocate(fd, offset, size)


def allocate(fd: int, offset: int, size: int) -> None:
    """Does what ``reserve`` does, for who has checked that there is room.

    Raises:
        SharedMemoryExhausted: there is none.
    """
    try:
        os.posix_fallocate(fd, offset, size)
    except OSError as error:
        found = _largest_file() if error.errno == errno.EFBIG else free_memory()
        raise SharedMemoryExhausted(advice(size, found)) from error


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


def _largest_file() -> FreeMemory:
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = "the limit of a file's size (RLIMIT_FSIZE), which counts for shared memory"
    return FreeMemory(most, limit, "Raise it (ulimit -f unlimited)")
