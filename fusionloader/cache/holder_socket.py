"""The holder's socket: one listener per user, and connections to it.

The listener holds a lock on a file beside its socket, from before it binds until its process ends.
So a process that gets the lock may remove an existing socket, because its holder is dead. The lock
file is never removed: otherwise two holders could lock two files of that name.

Paths begin at an open descriptor of the folder, because the folder was checked when it was opened,
and because a socket's path must be short.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from pathlib import Path

from fusionloader.cache.runtime_folder import open_runtime_folder
from fusionloader.system import fd_messages

_BACKLOG = 1024


class HolderSocket:
    """The lock and the listening socket of a holder."""

    def __init__(self, folder_fd: int, lock_fd: int) -> None:
        self._folder_fd, self._lock_fd = folder_fd, lock_fd
        self._path = _socket_path(folder_fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self.listener = fd_messages.make_socket()
        self.listener.setblocking(False)
        self.listener.bind(self._path)
        self.listener.listen(_BACKLOG)

    @classmethod
    def claim(cls, folder: Path) -> HolderSocket | None:
        """Returns a listening socket; ``None`` if another holder has the lock.

        Raises:
            OSError: the folder or the socket cannot be used, see ``open_runtime_folder``.
        """
        folder_fd = open_runtime_folder(folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock_fd = os.open(f"{_name()}.lock", flags, 0o600, dir_fd=folder_fd)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock_fd)
            os.close(folder_fd)
            return None
        return cls(folder_fd, lock_fd)

    def close(self) -> None:
        """Removes the socket. Connections that were not accepted are closed."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self.listener.close()
        os.close(self._lock_fd)
        os.close(self._folder_fd)


def connect(folder: Path, timeout: float) -> socket.socket | None:
    """Returns a connection to the holder; ``None`` if there is none.

    Raises:
        OSError: the folder cannot be used, see ``open_runtime_folder``, or the holder does not
            accept within ``timeout`` seconds.
        PermissionError: the holder is another user's process.
    """
    folder_fd = open_runtime_folder(folder)
    connection = fd_messages.make_socket()
    try:
        connection.settimeout(timeout)
        connection.connect(_socket_path(folder_fd))
        if not fd_messages.is_same_user(connection):
            raise PermissionError(
                f"the cache holder in {folder}, pid {fd_messages.peer_pid(connection)}, is another "
                "user's process"
            )
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except OSError:
        connection.close()
        raise
    finally:
        os.close(folder_fd)
    return connection


def log_path(folder: Path) -> Path:
    """Returns the file that a background holder writes its errors to."""
    return folder / f"{_name()}.log"


def _socket_path(folder_fd: int) -> str:
    return f"/proc/self/fd/{folder_fd}/{_name()}.sock"


def _name() -> str:
    # Containers may share the folder, but not pids, by which dead processes are recognized.
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"cache-{namespace}"
