"""Anonymous memory, which processes share by its descriptor.

The system call ``memfd_create`` makes it. If a container refuses that call, or the kernel or Python
is too old for it, the memory is a file in ``/dev/shm`` whose name is removed once the file is open.
Such a file counts against the size of ``/dev/shm``, and cannot be sealed, so a process with its
descriptor could shrink it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import secrets

DEV_SHM = "/dev/shm"  # noqa: S108 - the kernel's, where POSIX shared memory lies
_REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS)
_MFD_NOEXEC_SEAL = 8  # of Linux 6.3; systems with vm.memfd_noexec=2 allow nothing else
_NO_FLAG = 1 << 31  # memfd_create answers this with EINVAL, unless the call is refused
_NAME = re.compile(r"fusionloader-\d+-[\w-]+-[0-9a-f]{16}")


def create(kind: str, nbytes: int, *, grows: bool = False, allocated: int | None = None) -> int:
    """Returns a descriptor of ``nbytes`` zero bytes, which only this user can access.

    The caller closes it.

    Args:
        kind: name of the memory, which ``/proc`` shows with this process's id.
        nbytes: size in bytes.
        grows: whether the size may grow; it can never shrink.
        allocated: bytes at the beginning to allocate now if the memory lies in ``/dev/shm``; by
            default all. Other bytes must be allocated before they are written, because a write
            while ``/dev/shm`` is full raises SIGBUS.

    Raises:
        OSError: there is too little memory, or the limit of a file's size is lower, or neither
            way of making memory works.
    """
    import fcntl  # only on POSIX; other systems import this module too

    name = f"fusionloader-{os.getpid()}-{kind}"
    fd = _memfd(name)
    sealable = fd is not None
    if fd is None:
        fd = _unlinked_file(name)
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, nbytes)
        if sealable:
            final = 0 if grows else fcntl.F_SEAL_GROW
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL | final)
        elif allocated := nbytes if allocated is None else allocated:
            os.posix_fallocate(fd, 0, allocated)
    except BaseException:
        os.close(fd)
        raise
    return fd


def lies_in_dev_shm() -> bool:
    """Returns whether ``create`` must use ``/dev/shm`` in this process."""
    try:
        os.memfd_create("", _NO_FLAG)
    except AttributeError:
        return True
    except OSError as error:
        return error.errno in _REFUSALS
    raise AssertionError("memfd_create took a flag that does not exist")


def _memfd(name: str) -> int | None:
    """Returns a descriptor; ``None`` if the system call is refused or missing."""
    if not hasattr(os, "memfd_create"):
        return None
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        try:
            return os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return os.memfd_create(name, flags)  # an older kernel
    except OSError as error:
        if error.errno in _REFUSALS:
            return None
        raise


def _unlinked_file(name: str) -> int:
    """Returns the descriptor of a file in ``/dev/shm`` whose name is removed."""
    try:
        import posix_ipc
    except ImportError as error:
        raise OSError(errno.ENOSYS, _no_way("posix_ipc is not installed")) from error
    _remove_left_names()
    name = f"/{name}-{secrets.token_hex(8)}"
    try:
        try:
            memory = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600)
        finally:  # a signal handler may raise after the file was made
            try:  # noqa: SIM105 - contextlib.suppress is a call, which a handler may interrupt
                posix_ipc.unlink_shared_memory(name)
            except posix_ipc.ExistentialError:
                pass  # another process has removed the name, or the file was not made
    except posix_ipc.Error as error:
        raise OSError(errno.EACCES, _no_way(str(error))) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.ENOMEM):
            raise
        if error.errno is None:  # posix_ipc reports "too many open files" without a number
            raise OSError(errno.EMFILE, str(error)) from error
        raise OSError(error.errno, _no_way(str(error))) from error
    return int(memory.fd)


def _no_way(why: str) -> str:
    return (
        "the system call memfd_create, by which FusionLoader makes shared memory, is refused here, "
        f"as by a container's seccomp profile, and {DEV_SHM} cannot be used in its place: {why}. "
        f"Allow the call, or mount a tmpfs at {DEV_SHM}, or use num_workers=0"
    )


@functools.cache
def _remove_left_names() -> None:
    """Removes names whose processes were killed before they removed them. Their files are empty.

    Removing the name of a live process does no harm: that process has the file open, and is about
    to remove the name itself.
    """
    with contextlib.suppress(OSError), os.scandir(DEV_SHM) as entries:
        for entry in entries:
            if not _NAME.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            with contextlib.suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                if found.st_uid == os.geteuid() and found.st_size == 0:
                    os.unlink(entry.path)
