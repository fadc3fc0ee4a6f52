"""File stores on a local disk, which later jobs reuse. Damaged stores are replaced by empty ones.

Data is verified by a checksum when it is read: after a fault of the disk, the original file is read
again, and no wrong pixel is delivered.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from fusionloader.cache.tiers import file_store
from fusionloader.cache.tiers.file_store import FileStore, table_bytes
from fusionloader.cache.tiers.ledger import Ledger

log = logging.getLogger("fusionloader.cache")

_SPARED_SHARE = 1 / 64  # fraction of the file system that stays free


class DiskInUse(OSError):
    """Another process has locked the file."""


def open_store(path: Path, files: int, fingerprint: bytes, ledger: Ledger) -> FileStore:
    """Opens the store in a file, or makes an empty one.

    The file stays locked while the store is open. Its contents are charged to the ledger.

    Args:
        path: path of the file.
        files: number of records.
        fingerprint: digest of the files, 32 bytes.
        ledger: ledger of the cache.

    Raises:
        DiskInUse: another process has locked the file.
        ValueError: the table is larger than what the ledger has left.
        OSError: the file cannot be written.
    """
    lock = _lock(path.with_suffix(".lock"))
    try:
        store = _open(path, files, fingerprint, ledger)
    except BaseException:
        os.close(lock)
        raise
    store.lock_fd = lock
    return store


def _lock(path: Path) -> int:
    """Locks a file; returns its descriptor.

    The data file itself would stay locked until all processes have unmapped it.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise DiskInUse(f"another process holds {path}") from error
    return fd


def _open(path: Path, files: int, fingerprint: bytes, ledger: Ledger) -> FileStore:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    charged = 0
    try:
        charged = _renewed(fd, path, files, fingerprint, ledger)
        if not charged:
            # A new file, because other processes may have this one mapped.
            path.unlink()
            old, fd = fd, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.close(old)
            charged = _made(fd, files, fingerprint, ledger)
        store = FileStore.of_descriptor(fd, table_bytes(files))
    except BaseException:
        ledger.refund(charged, disk=True)
        os.close(fd)
        raise
    store.forget_unfinished()
    return store


def _renewed(fd: int, path: Path, files: int, fingerprint: bytes, ledger: Ledger) -> int:
    """Renews and charges the store in the file; returns its bytes, 0 if it is not usable."""
    room = ledger.disk.limit - table_bytes(files)
    size = os.fstat(fd).st_size
    used = file_store.renew_header(fd, files, room, _spared(fd), fingerprint)
    if used is None:
        if size:
            log.warning("%s is of another version or dataset, or damaged: made anew", path)
        return 0
    if ledger.charge(used, disk=True):
        return used
    log.warning("%s has more than is left of %d bytes: made anew", path, ledger.disk.limit)
    return 0


def _made(fd: int, files: int, fingerprint: bytes, ledger: Ledger) -> int:
    """Makes and charges an empty store; returns the bytes of its table."""
    table, limit = table_bytes(files), ledger.disk.limit
    if not ledger.charge(table, disk=True):
        left = limit - ledger.disk.used
        raise ValueError(f"{files} files need a table of {table} bytes, the disk has {left} left")
    try:
        os.posix_fallocate(fd, 0, table)
    except OSError:
        ledger.refund(table, disk=True)
        raise
    file_store.write_header(fd, files, file_store.DISK, limit - table, _spared(fd), fingerprint)
    return table


def _spared(fd: int) -> int:
    system = os.fstatvfs(fd)
    return int(system.f_blocks * system.f_frsize * _SPARED_SHARE)
