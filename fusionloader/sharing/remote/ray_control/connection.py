"""A loader's connection to the process that talks to Ray, which is found or started."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import threading
import time
from typing import Any

from fusionloader.sharing.remote.ray_control.messages import (
    Code,
    FromLoader,
    Leave,
    Left,
    Refused,
    Start,
    WorkerJoined,
    packed,
    unpacked,
)
from fusionloader.sharing.remote.ray_control.process import RayControlConfig
from fusionloader.sharing.remote.user_code.bundle import CodeBundle
from fusionloader.system import fd_messages
from fusionloader.system.finalizers import Finalizer
from fusionloader.system.limits import anonymous_memory
from fusionloader.system.local_service import ServiceStarter, reap_ended
from fusionloader.system.processes import open_pidfd
from fusionloader.system.shm.descriptor import wait_for

_PLACE = re.compile(r"^\[.*?\] \S+:\d+: ")  # time and source line, which begin a line of Ray's log
_MOST_ERRORS = 1 << 14  # bytes of standard error that are read
_CONNECT_SECONDS = 0.2
_SEND_SECONDS = 5.0  # for a message that must not be lost
_CLOSE_SECONDS = 5.0


class RayConnection:
    """The connection. A thread receives, others send.

    Attributes:
        pid: process id of the process that talks to Ray.
    """

    def __init__(self, address: str, start: Start, deadline: float, is_alone: bool) -> None:
        """Connects, and asks for workers, without waiting for the cluster to be joined.

        Args:
            address: name of the process's socket.
            start: the first message.
            deadline: when to give up, in seconds of the monotonic clock.
            is_alone: whether the process serves no other loader, so that it may be ended.

        Raises:
            TimeoutError: the process has not started in time.
            OSError: it cannot be started.
        """
        self._is_last = is_alone
        module = "fusionloader.sharing.remote.ray_control.process"
        starter = ServiceStarter(module, RayControlConfig(address, start), site=True)
        try:
            found = starter.connect(address, _CONNECT_SECONDS, deadline)
            if found is None:
                raise TimeoutError
        except BaseException:
            if is_alone:
                starter.kill()
            raise
        self._connection = found
        found.setblocking(False)
        self.pid = fd_messages.peer_pid(found)
        self._process = self._errors = -1
        with contextlib.suppress(OSError):  # it has ended, which `receive` shows
            process = open_pidfd(self.pid)
            # The pidfd may be of a later process with this pid.
            if process >= 0 and wait_for(found.fileno(), 0, 0):
                os.close(process)
            else:
                self._process = process
            self._errors = os.open(f"/proc/{self.pid}/fd/2", os.O_RDONLY | os.O_CLOEXEC)
        Finalizer(self, _close, found, self._process, self._errors)
        self.send(start)

    def joined(self, deadline: float) -> WorkerJoined | None:
        """Waits until the process has joined the cluster; ``None`` if it has ended instead.

        Raises:
            ConnectionError: it cannot join.
            TimeoutError: it has not joined in time.
        """
        message = self.receive(deadline)
        if isinstance(message, Refused):
            raise ConnectionError(message.reason)
        return message if isinstance(message, WorkerJoined) else None

    def receive(self, deadline: float | None = None) -> Any:
        """Returns the next message, ``None`` when the process has ended, or the loader has left.

        Raises:
            TimeoutError: there is none until ``deadline``.
        """
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not wait_for(self._connection.fileno(), select.POLLIN, left):
                raise TimeoutError
            try:
                message = fd_messages.receive(self._connection)
            except BlockingIOError:
                continue
            if message is None:
                return None
            content = unpacked(message)
            if not isinstance(content, Left):
                return content
            self._is_last = content.was_last

    def send(self, message: FromLoader, *fds: int, must_arrive: bool = True) -> None:
        """Sends a message; one that need not arrive is dropped if the process does not read."""
        with contextlib.suppress(OSError):  # it has ended, which `receive` shows
            if must_arrive:
                wait_for(self._connection.fileno(), select.POLLOUT, _SEND_SECONDS)
            fd_messages.send(self._connection, packed(message, *fds))

    def send_code(self, code: CodeBundle) -> None:
        """Sends user code, which may be larger than a message.

        Raises:
            OSError: there is too little memory.
        """
        memory = anonymous_memory.create("code", len(code.pickled))
        with open(memory, "r+b", buffering=0) as file:
            rest = memoryview(code.pickled)
            while rest:
                rest = rest[file.write(rest) :]
            self.send(Code(len(code.pickled), code.search_path), memory)

    def last_error(self) -> str:
        """Returns the last line of its standard error, without the line of Ray's source."""
        said = b""
        if self._errors >= 0:
            tail = max(0, os.fstat(self._errors).st_size - _MOST_ERRORS)
            said = os.pread(self._errors, _MOST_ERRORS, tail)
        lines = said.decode(errors="replace").strip().splitlines()
        last = _PLACE.sub("", lines[-1]).strip() if lines else "its process has ended"
        return last.split(". ")[0][:300]

    def leave(self, reader: threading.Thread | None = None) -> None:
        """Gives the workers up, and waits for their end if no other loader uses them.

        ``reader`` is the thread that receives messages, which ends at the connection's end.
        """
        deadline, seconds = time.monotonic() + _CLOSE_SECONDS, 0.0
        try:
            self.send(Leave())
            if reader is not None:
                reader.join(_CLOSE_SECONDS)
                if reader.is_alive():
                    self._disconnect()  # it wakes the thread
                    reader.join()
            else:
                with contextlib.suppress(TimeoutError):
                    while self.receive(deadline) is not None:
                        pass
            seconds = max(0.0, deadline - time.monotonic())
        finally:  # also after an exception, such as KeyboardInterrupt
            self.close(seconds)

    def close(self, seconds: float = 0.0) -> None:
        """Closes the connection, and ends a process that serves no other loader.

        It ends by itself within ``seconds``, otherwise by SIGTERM, at last by SIGKILL.
        """
        if self._is_last and self._process >= 0:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if wait_for(self._process, select.POLLIN, seconds):
                    break
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._process, number)
                seconds = _CLOSE_SECONDS
            wait_for(self._process, select.POLLIN, seconds)
            reap_ended()
        self._disconnect()

    def _disconnect(self) -> None:
        """Ends the connection, which is closed when this object is collected.

        Forked workers have it, too, and other threads may be about to use it.
        """
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


def _close(connection: socket.socket, *fds: int) -> None:
    connection.close()
    for fd in fds:
        if fd >= 0:
            os.close(fd)
