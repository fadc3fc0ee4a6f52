"""The client of the cache holder: finds or starts it, and requests descriptors of cache memory.

After that, a process does not need the holder. If the holder dies, the processes that have attached
go on sharing their memory. Processes that attach later start another holder, with other memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fusionloader.cache import holder_socket
from fusionloader.cache.requests import CacheRequest
from fusionloader.cache.runtime_folder import runtime_folder
from fusionloader.system import fd_messages
from fusionloader.system.fd_messages import FdMessage, Fields
from fusionloader.system.finalizers import Finalizer
from fusionloader.system.local_service import ServiceStarter

log = logging.getLogger("fusionloader.cache")

_PATIENCE_SECONDS = 20.0  # enough to make the tables of about ten million files


class HolderUnavailable(RuntimeError):
    """No holder can be reached or started, or it refuses a request; the text says why."""


class HolderRefused(HolderUnavailable):
    """The holder refuses a request, for example because its budget is used up."""


@dataclass(frozen=True, slots=True)
class Attached:
    """The memory of a dataset, held for this process until ``close()`` or the last reference.

    The descriptors are closed with it. A forked process may use its copies of them; closing those
    does not end this use.

    Attributes:
        fds: descriptors by name, as ``DatasetMemory.fds()`` returns them.
        nbytes: sizes of the stores in bytes, by name.
        served: whether the budget is that of ``cache serve``.
        memory: budget of shared memory, in bytes.
        disk: budget on the disk, in bytes.
        path: folder of the disk tiers.
    """

    fds: Mapping[str, int]
    nbytes: Mapping[str, int]
    served: bool
    memory: int
    disk: int
    path: str | None
    _use: _Use

    def close(self) -> None:
        """Ends this use and closes the descriptors; a second call does nothing."""
        self._use.end()


def attach(request: CacheRequest) -> Attached:
    """Returns the memory that this user's processes share for the requested files.

    Raises:
        HolderUnavailable: no holder can be started, or it does not answer, or it refuses.
    """
    folder = runtime_folder()
    log_file = holder_socket.log_path(folder)
    starter = ServiceStarter("fusionloader.cache.holder_process", folder, log_file)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (answered := _ask(folder, {"do": "attach", **request.fields()})) is None:
        try:
            starts = starter.start_until(deadline)
        except OSError as error:
            raise HolderUnavailable(f"no cache holder can be started: {error}") from error
        if not starts:
            raise HolderUnavailable(
                f"no cache holder in {folder} has answered for {_PATIENCE_SECONDS:g} s: none "
                f"listens, or it ends connections; see {log_file}"
            )
    return _attached(*answered)


def ask_holder(request: Fields) -> Fields | None:
    """Returns the holder's answer to ``list`` or ``drop``; ``None`` if there is no holder.

    Raises:
        HolderUnavailable: the holder cannot be reached, does not answer, or refuses.
    """
    answered = _ask(runtime_folder(), request)
    if answered is None:
        return None
    message, connection = answered
    connection.close()
    message.close()
    return message.fields


def _ask(folder: Path, request: Fields) -> tuple[FdMessage, socket.socket] | None:
    """Returns the answer and the connection; ``None`` if there is no holder, or it is just ending.

    Raises:
        HolderUnavailable: see ``ask_holder``.
    """
    try:
        connection = holder_socket.connect(folder, _PATIENCE_SECONDS)
        if connection is None:
            return None
        message = _exchange(connection, {"version": fd_messages.package_version(), **request})
    except OSError as error:
        raise HolderUnavailable(f"the cache holder cannot be reached: {error}") from error
    if message is None:
        connection.close()
        return None
    if refused := message.fields.get("refused"):
        connection.close()
        message.close()
        raise HolderRefused(str(refused))
    return message, connection


def _exchange(connection: socket.socket, request: Fields) -> FdMessage | None:
    """Sends a request and returns the answer; ``None`` if the holder ends before it answers."""
    try:
        fd_messages.send(connection, FdMessage(request))
        return fd_messages.receive(connection)
    except ConnectionError:
        return None
    except OSError as error:
        pid = fd_messages.peer_pid(connection)
        connection.close()
        raise HolderUnavailable(f"the cache holder, pid {pid}, does not answer: {error}") from error


def _attached(message: FdMessage, connection: socket.socket) -> Attached:
    fields = message.fields["attached"]
    fds = MappingProxyType(dict(zip(fields["names"], message.fds, strict=True)))
    if fields["served"]:
        log.info(
            "the cache is that of `python -m fusionloader cache serve`, of %d bytes of memory and "
            "%d of disk; this job's own size is not used",
            fields["memory"],
            fields["disk"],
        )
    return Attached(
        fds,
        MappingProxyType(fields["nbytes"]),
        fields["served"],
        fields["memory"],
        fields["disk"],
        fields["path"],
        _Use(connection, tuple(fds.values())),
    )


class _Use:
    """A connection whose end tells the holder that a use has ended, and its descriptors."""

    def __init__(self, connection: socket.socket, fds: tuple[int, ...]) -> None:
        # Not at exit: the end of the process closes both.
        self.end = Finalizer(self, _end_use, connection, fds, os.getpid())


def _end_use(connection: socket.socket, fds: tuple[int, ...], owner: int) -> None:
    if os.getpid() == owner:
        # Forked workers have copies of the connection, so closing this one would not end it.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
    connection.close()
    for fd in fds:
        os.close(fd)
