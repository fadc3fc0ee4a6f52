"""A process that serves others of its user on this machine: its event loop, and how it is started.

The first process that finds no service at an address starts one. Two processes may do so at the
same time: the address decides, since only one service can bind it, and the other one ends at once.
A service ends by itself when it has had no peer for a while.

A peer has left when its connection ends. A forked worker has a copy of its parent's connection, so
a peer has also left when its process has ended, which a pidfd shows. The loop waits for no peer: a
peer that does not read what it is sent is removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from fusionloader.system import fd_messages
from fusionloader.system.fd_messages import FdMessage, Fields
from fusionloader.system.processes import BareProcess, describe_exit

_MOST_MESSAGES = 64  # that are read from a peer before the next one has its turn
_PAUSE_SECONDS = 0.02

_started: list[BareProcess] = []  # referenced until they have ended, so that they are reaped


@dataclass(slots=True, eq=False)
class LocalPeer:
    """A process that has connected.

    Attributes:
        connection: the connection, which does not block.
        pid: process id.
        pid_fd: pidfd of the process, -1 where the system has none.
    """

    connection: socket.socket
    pid: int
    pid_fd: int

    def has_ended(self) -> bool:
        """Whether the process has ended, as far as its pidfd shows."""
        poll = select.poll()
        poll.register(self.pid_fd, select.POLLIN)
        return self.pid_fd >= 0 and bool(poll.poll(0))

    def reply(self, fields: Fields, payload: bytes = b"", fds: tuple[int, ...] = ()) -> bool:
        """Sends a message without waiting; returns whether that was possible."""
        try:
            fd_messages.send(self.connection, FdMessage(fields, payload, fds))
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Closes the connection and the pidfd."""
        self.connection.close()
        if self.pid_fd >= 0:
            os.close(self.pid_fd)


PeerType = TypeVar("PeerType", bound=LocalPeer)


class LocalService(Generic[PeerType]):
    """The event loop over peers, and over other descriptors that a subclass watches.

    Subclasses have the decisions: what a message leads to, and what is done between events.
    """

    name = "the service"
    first_seconds = 10.0  # for which it waits for the first peer
    last_seconds = 1.0  # for which it waits after the last one

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

    # ---- what a subclass does ------------------------------------------------------------------

    def joined(self, peer: PeerType) -> None:
        """A peer has connected, and sent nothing yet."""

    def handle(self, peer: PeerType, message: FdMessage) -> bool:
        """Does what a message asks for; returns whether the peer stays.

        The message is closed afterwards: a descriptor that is needed is taken out of it.
        """
        raise NotImplementedError

    def left(self, peer: PeerType) -> None:
        """A peer is no longer served; its descriptors are about to be closed."""

    def advance(self) -> float | None:
        """Does what is due after events; returns the seconds until it is to be called again.

        ``None`` leaves that to the next event.
        """
        return None

    def is_needed(self) -> bool:
        """Whether it goes on although no more peers may come."""
        return bool(self.peers)

    def receive(self, peer: PeerType) -> FdMessage | None:
        """Returns a peer's next message, ``None`` at the end of its connection.

        Raises:
            BlockingIOError: there is none yet.
        """
        return fd_messages.receive(peer.connection)

    def refusal(self, why: str) -> Fields:
        """Returns what a process is sent that cannot be served."""
        return {"refused": why}

    # ---- what it may use -----------------------------------------------------------------------

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        """Calls ``handler`` whenever a descriptor is readable, or at its end."""
        self._poll.register(fd, select.EPOLLIN)
        self._handlers[fd] = handler
        self._fresh.add(fd)

    def unwatch(self, fd: int) -> None:
        """Undoes ``watch``, before the descriptor is closed."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def end(self) -> None:
        """Has ``serve`` return."""
        self._ends = True

    def remove(self, peer: PeerType) -> None:
        """Serves a peer no longer; a second call does nothing."""
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
                # What an earlier event has closed may have been opened again under its number.
                # Such a descriptor is reported the next time, if there is anything to report.
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
        pid, pid_fd = fd_messages.peer_pid(connection), -1
        try:
            pid_fd = os.pidfd_open(pid)
        except ProcessLookupError:
            connection.close()
            return
        except OSError:
            pass  # the end of the connection shows that of the process
        peer = self._kind(connection, pid, pid_fd)
        self.peers.add(peer)
        for fd in (connection.fileno(), pid_fd):
            if fd >= 0:
                self.watch(fd, lambda: self._read(peer))
        self.joined(peer)

    def _refuse_for_want_of_files(self) -> None:
        """Accepts in place of the spare descriptor: a waiting connection would wake the loop."""
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
        """Handles messages of a peer; all are read before its process counts as ended."""
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
    """Starts a service, and another one where the first found the address bound by a third."""

    def __init__(self, module: str, argument: object, log: Path | None = None) -> None:
        """``log`` is the file with the errors of the service, where it writes one."""
        self._module, self._argument = module, argument
        self._where = "" if log is None else f"; see {log}"
        self._process: BareProcess | None = None

    def is_under_way(self) -> bool:
        """Whether the service that was started here runs."""
        return self._process is not None and self._process.is_alive()

    def start(self) -> None:
        """Starts a service, unless one that was started here runs.

        Raises:
            OSError: it cannot be started, or has failed.
        """
        reap_ended()
        if self.is_under_way():
            return
        exitcode = 0 if self._process is None else self._process.exitcode
        if exitcode:
            raise OSError(f"the process {describe_exit(exitcode)}{self._where}")
        self._process = BareProcess(self._module, self._argument, (), apart=True)
        _started.append(self._process)

    def start_until(self, deadline: float) -> bool:
        """Starts a service and pauses; returns whether to try again, before ``deadline``."""
        if time.monotonic() > deadline:
            return False
        self.start()
        time.sleep(_PAUSE_SECONDS)
        return True


def reap_ended() -> None:
    """Reaps services that were started here and have ended."""
    for process in list(_started):
        if not process.is_alive():
            with contextlib.suppress(ValueError):  # another thread may have done so
                _started.remove(process)
