"""Shared-memory objects that are freed however their users end.

An object is created through ``posix_ipc`` with mode 0600 under an unguessable name that contains
the owner's pid, and unlinked at once. Processes share it by file descriptor, so nothing of it stays
in ``/dev/shm`` after they end. The name exists for microseconds; ``sweep`` removes the objects of
owners that died within them.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path

import posix_ipc

from fusionloader.amounts import mib

SHM = Path("/dev/shm")
_NAME = re.compile(r"fusionloader-(\d+)-[0-9a-f]{32}")


class SharedMemoryExhausted(RuntimeError):
    """``/dev/shm`` has too little room for the batches in flight."""


def create(size: int) -> int:
    """Returns a file descriptor of ``size`` bytes of fresh shared memory; the caller closes it."""
    name = f"/fusionloader-{os.getpid()}-{secrets.token_hex(16)}"
    memory = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600, size=size)
    memory.unlink()
    os.set_inheritable(memory.fd, False)
    return int(memory.fd)


def reserve(fd: int, offset: int, size: int) -> None:
    """Allocates the bytes, growing the object.

    Without this, the first write on a full ``/dev/shm`` would raise SIGBUS.

    Raises:
        SharedMemoryExhausted: there is no room.
    """
    try:
        os.posix_fallocate(fd, offset, size)
    except OSError as error:
        raise SharedMemoryExhausted(advice(size, free())) from error


def free() -> int:
    """Returns the bytes that are free in ``/dev/shm``."""
    stat = os.statvfs(SHM)
    return stat.f_bavail * stat.f_frsize


def check_room(needed: int, what: str) -> None:
    """Raises SharedMemoryExhausted when ``/dev/shm`` has fewer than ``needed`` bytes free."""
    available = free()
    if available < needed:
        raise SharedMemoryExhausted(advice(needed, available, what))


def advice(needed: int, available: int, what: str = "batches") -> str:
    """Returns the error's text: the bytes needed, the bytes available, what to do."""
    return (
        f"FusionLoader needs {mib(needed)} of shared memory for {what}, but /dev/shm has "
        f"{mib(available)} free. Make it larger (docker run --shm-size=..., in Kubernetes an "
        f"emptyDir with medium: Memory mounted at /dev/shm, elsewhere mount -o remount,size=... "
        f"/dev/shm), or lower batch_size, prefetch_factor or num_workers."
    )


def sweep() -> None:
    """Removes the objects of owners that have died."""
    with contextlib.suppress(OSError):
        for path in SHM.iterdir():
            match = _NAME.fullmatch(path.name)
            if match and not _alive(int(match[1])):
                with contextlib.suppress(OSError):
                    path.unlink()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
