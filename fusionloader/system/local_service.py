"""A process that serves other processes of its user on this machine: its event loop and its start.

A process that finds no service at an address starts one. Two processes may do so at the same time,
but only one service can bind the address, and the other ends at once. A service ends by itself
after it has had no peer for a while.

A peer has left when its connection ends. Since forked workers have copies of their parent's
connection, a peer has also left when its process has ended, which a pidfd shows. The loop never
waits for a peer: one that does not read its messages is removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from fusionloader.system import fd_messages
from fusionloader.system.fd_messages import FdMessage, Fields
from fusionloader.system.processes import BareProcess, describe_exit, open_pidfd
from fusionloader.system.shm.descriptor import wait_for

_MOST_MESSAGES = 64  # read from one peer before the next one
_PAUSE_SECONDS = 0.02

_started: list[BareProcess] = []  # services that were started here and not yet reaped


@dataclass(slots=True, eq=False)
class LocalPeer:
    """A process that has connected.

    Attributes:
        connection: the connection, in non-blocking mode.
        pid: process id.
        pid_fd: pidfd of the process, -1 if the system has none.
    """

    connection: socket.socket
    pid: int
    pid_fd: int

    def has_ended(self) -> bool:
        """Whether the process has ended; ``False`` without a pidfd."""
        return self.pid_fd >= 0 and wait_for(self.pid_fd, select.POLLIN)

    def reply(self, fields: Fields, payload: bytes = b"", fds: tuple[int, ...] = ()) -> bool:
        """Sends a message without waiting; returns whether that succeeded."""
        try:
            fd_messages.send(self.connection, FdMessage(fields, payload, fds))
        except OSError:
            return False
        return True

    def close(self) -> None:
        self.connection.close()
        if self.pid_fd >= 0:
            os.close(self.pid_fd)


PeerType = TypeVar("PeerType", bound=LocalPeer)


class LocalService(ABC, Generic[PeerType]):
    """The event loop over peers, and over other descriptors that a subclass watches.

    Subclasses decide how messages are handled, and what is done between events.
    """

    name = "the service"
    first_seconds = 10.0  # wait for the first peer
    last_seconds = 1.0  # wait for another peer after the last one has left

    def __init__(self, listener: socket.socket, kind: type[PeerType]) -> None:
        listener.setblocking(False)
        self._listener, self._kind = listener, kind
        self._poll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._fresh: set[int] = set()
        self._ends = False
        self._quiet_until: float | None = time.monotonic() + self.first_seconds
        self._spare_fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self.peers: set[PeerType] = set()
        self.watch(listener.fileno(), self._accept)

    # ---- for subclasses to override ------------------------------------------------------------

    def joined(self, peer: PeerType) -> None:
        """Called when a peer has connected, before its first message."""

    @abstractmethod
    def handle(self, peer: PeerType, message: FdMessage) -> bool:
        """Handles a message; returns whether the peer stays connected.

        The message is closed afterwards, so take out descriptors that are needed for longer.
        """

    def left(self, peer: PeerType) -> None:
        """Called when a peer is removed, before its descriptors are closed."""

    def advance(self) -> float | None:
        """Does what is due after events; returns the seconds until the next call.

        ``None`` means that the next call follows the next event.
        """
        return None

    def is_needed(self) -> bool:
        """Whether the service must go on even if no other peer connects."""
        return bool(self.peers)

    def receive(self, peer: PeerType) -> FdMessage | None:
        """Returns a peer's next message; ``None`` at the end of its connection.

        Raises:
            BlockingIOError: there is no message yet.
        """
        return fd_messages.receive(peer.connection)

    def refusal(self, why: str) -> Fields:
        return {"refused": why}

    # ---- for subclasses to call ----------------------------------------------------------------

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        """Calls ``handler`` whenever a descriptor is readable or at its end."""
        self._poll.register(fd, select.EPOLLIN)
        self._handlers[fd] = handler
        self._fresh.add(fd)

    def unwatch(self, fd: int) -> None:
        """Undoes ``watch``. Call it before the descriptor is closed."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def end(self) -> None:
        self._ends = True

    def remove(self, peer: PeerType) -> None:
        """Removes a peer and closes its connection; a second call does nothing."""
        if peer not in self.peers:
            return
        self.peers.remove(peer)
        self.unwatch(peer.connection.fileno())
        self.unwatch(peer.pid_fd)
        self.left(peer)
        peer.close()

    # ---- the loop ------------------------------------------------------------------------------

    def serve(self) -> None:
        """Serves until it has not been needed for a while, or ``end`` was called."""
        again = self.advance()
        while not self._ends:
            ready = self._poll.poll(self._patience(again))
            self._fresh.clear()
            for fd, _ in ready:
                # A handler may have closed a descriptor, and opened another with the same number.
                # This event is not of that one; the next poll reports it if it is ready.
                if fd not in self._fresh and (handler := self._handlers.get(fd)) is not None:
                    handler()
            again = self.advance()
            if self.is_needed():
                self._quiet_until = None
            elif self._quiet_until is None:
                self._quiet_until = time.monotonic() + self.last_seconds
            elif not ready and time.monotonic() >= self._quiet_until:
                break

    def close(self) -> None:
        """Removes all peers and closes its descriptors, the listener among them."""
        for peer in list(self.peers):
            self.remove(peer)
        self._poll.close()
        self._listener.close()
        os.close(self._spare_fd)

    def _patience(self, again: float | None) -> float | None:
        if self._quiet_until is None:
            return again
        quiet = max(0.0, self._quiet_until - time.monotonic())
        return quiet if again is None else min(again, quiet)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._refuse_for_want_of_files()
            return
        connection.setblocking(False)
        if not fd_messages.is_same_user(connection):
            self._refuse(connection, f"{self.name} belongs to user {os.geteuid()}")
            return
        pid = fd_messages.peer_pid(connection)
        try:
            pid_fd = open_pidfd(pid)  # without, the end of the connection shows that of the process
        except ProcessLookupError:
            connection.close()
            return
        peer = self._kind(connection, pid, pid_fd)
        self.peers.add(peer)
        for fd in (connection.fileno(), pid_fd):
            if fd >= 0:
                self.watch(fd, lambda: self._read(peer))
        self.joined(peer)

    def _refuse_for_want_of_files(self) -> None:
        """Accepts with the spare descriptor: a waiting connection would wake the loop forever."""
        os.close(self._spare_fd)
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            self._refuse(connection, f"{self.name} has all of its {limit} open files in use")
        self._spare_fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def _refuse(self, connection: socket.socket, why: str) -> None:
        with connection, contextlib.suppress(OSError):
            fd_messages.send(connection, FdMessage(self.refusal(why)))

    def _read(self, peer: PeerType) -> None:
        """Handles messages of a peer. All are read before the end of its process is considered."""
        for _ in range(_MOST_MESSAGES):
            try:
                message = self.receive(peer)
            except BlockingIOError:
                if peer.has_ended():
                    self.remove(peer)
                return
            if message is None:
                self.remove(peer)
                return
            try:
                stays = self.handle(peer, message)
            finally:
                message.close()
            if not stays:
                self.remove(peer)
            if peer not in self.peers:
                return


class ServiceStarter:
    """Starts a service, again if the first one ended because another service had the address."""

    def __init__(
        self, module: str, argument: object, log: Path | None = None, site: bool = False
    ) -> None:
        """``log`` is the file that the service writes its errors to, if it does.

        ``site`` is that of ``BareProcess``.
        """
        self._module, self._argument, self._site = module, argument, site
        self._where = "" if log is None else f"; see {log}"
        self._process: BareProcess | None = None

    def is_under_way(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def start(self) -> None:
        """Starts a service, unless the previous one is running.

        Raises:
            OSError: it cannot be started, or the previous one has failed.
        """
        reap_ended()
        if self.is_under_way():
            return
        exitcode = 0 if self._process is None else self._process.exitcode
        if exitcode:
            raise OSError(f"the process {describe_exit(exitcode)}{self._where}")
        self._process = BareProcess(self._module, self._argument, (), apart=True, site=self._site)
        _started.append(self._process)

    def connect(self, address: str, timeout: float, deadline: float) -> socket.socket | None:
        """Connects to the service, which is started if none listens; ``None`` after ``deadline``.

        Raises:
            OtherUser: a process of another user listens there.
            OSError: it cannot be started.
        """
        while True:
            try:
                return fd_messages.connect_to_own(address, timeout)
            except fd_messages.OtherUser:
                raise
            except OSError:  # no process listens there
                pass
            if not self.start_until(deadline):
                return None

    def kill(self) -> None:
        """Kills the service if it was started here and runs."""
        if self._process is not None:
            self._process.kill()
            reap_ended()

    def start_until(self, deadline: float) -> bool:
        """Starts a service and pauses; returns ``False`` after ``deadline`` instead."""
        if time.monotonic() > deadline:
            return False
        self.start()
        time.sleep(_PAUSE_SECONDS)
        return True


def reap_ended() -> None:
    """Reaps services that were started here and have ended."""
    for process in list(_started):
        if not process.is_alive():
            with contextlib.suppress(ValueError):  # another thread may have removed it
                _started.remove(process)
