"""The holder: one event loop that owns the memory of all caches of a user on a machine.

It maps no data and fills nothing: it makes memory, hands out descriptors, and remembers who has
them. A user is a connection, and has gone when the connection ends. A forked worker has a copy of
its parent's connection, so a user has also gone when its process has (a pidfd says so). Nothing
waits for a client: what a client does not read at once is not sent, and its connection closed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from fusionloader.cache.holder_socket import HolderSocket
from fusionloader.cache.protocol import answer
from fusionloader.cache.stores import CacheStores, User
from fusionloader.system import fd_messages
from fusionloader.system.fd_messages import FdMessage
from fusionloader.system.limits.open_files import allow_many_files

log = logging.getLogger("fusionloader.cache")

_FIRST_SECONDS = 10.0  # how long to wait for the first user
_LAST_SECONDS = 1.0  # how long to wait after the last one
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(slots=True, eq=False)
class Client:
    """A connection, and a pidfd of its process (-1 where there is none)."""

    connection: socket.socket
    user: User
    pid_fd: int = -1


class Holder:
    """The event loop over connections and the exits of users."""

    def __init__(self, claimed: HolderSocket, stores: CacheStores, lives_on: bool) -> None:
        """With ``lives_on`` it ends by a signal only, else when there is nothing left to hold."""
        self._socket, self._stores, self._lives_on = claimed, stores, lives_on
        self._poll = select.epoll()
        self._poll.register(claimed.listener, select.EPOLLIN)
        self._clients: dict[int, Client] = {}  # by each descriptor that is waited for
        self._spare_fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._end_at: float | None = time.monotonic() + _FIRST_SECONDS

    def serve(self) -> None:
        """Serves until there is nothing left to hold, or SIGTERM or SIGINT ask it to end."""
        allow_many_files()  # each user takes two, each dataset up to eight
        with _signals_as_bytes() as signals:
            self._poll.register(signals, select.EPOLLIN)
            fd: int | None = None
            while fd != signals and not self._has_ended(quiet=fd is None):
                fd = self._next_event()
                if fd is not None:
                    self._handle_event(fd)
        self._close()

    def _next_event(self) -> int | None:
        """Returns one descriptor: a second one may be closed by what the first leads to."""
        patience = None if self._end_at is None else max(0.0, self._end_at - time.monotonic())
        ready = self._poll.poll(patience, maxevents=1)
        return ready[0][0] if ready else None

    def _has_ended(self, quiet: bool) -> bool:
        if self._lives_on or not self._stores.is_empty():
            self._end_at = None
        elif self._end_at is None:
            self._end_at = time.monotonic() + _LAST_SECONDS
        return self._end_at is not None and quiet and time.monotonic() >= self._end_at

    def _handle_event(self, fd: int) -> None:
        if fd == self._socket.listener.fileno():
            self._accept()
        elif (client := self._clients.get(fd)) is not None:
            if fd == client.pid_fd:
                self._remove(client)
            else:
                self._receive(client)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._refuse_for_want_of_files()
            return
        connection.setblocking(False)
        if not fd_messages.is_same_user(connection):
            _refuse(connection, f"this cache belongs to user {os.geteuid()}")
            return
        client = Client(connection, User(fd_messages.peer_pid(connection)))
        self._wait_for(connection.fileno(), client)

    def _refuse_for_want_of_files(self) -> None:
        """Accepts in place of the spare descriptor: who waits in the backlog would wake us."""
        os.close(self._spare_fd)
        with contextlib.suppress(OSError):
            connection, _ = self._socket.listener.accept()
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            _refuse(connection, f"the cache holder has all of its {limit} open files in use")
        self._spare_fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def _receive(self, client: Client) -> None:
        try:
            message = fd_messages.receive(client.connection)
        except BlockingIOError:
            return
        if message is None:
            self._remove(client)
            return
        message.close()  # no request has descriptors
        if not self._stores.is_used_by(client.user):
            self._answer(client, message)

    def _answer(self, client: Client, request: FdMessage) -> None:
        reply = answer(self._stores, client.user, request.fields)
        try:
            fd_messages.send(client.connection, reply)
            stays = self._stores.is_used_by(client.user) and self._watch_process(client)
        except OSError:  # it has gone, or reads nothing
            stays = False
        if not stays:
            self._remove(client)

    def _watch_process(self, client: Client) -> bool:
        """Waits for the exit of a user; returns whether it still runs."""
        try:
            client.pid_fd = os.pidfd_open(client.user.pid)
            self._wait_for(client.pid_fd, client)
        except ProcessLookupError:
            return False
        except OSError:
            pass  # the end of the connection shows the exit
        return True

    def _wait_for(self, fd: int, client: Client) -> None:
        self._clients[fd] = client
        self._poll.register(fd, select.EPOLLIN)

    def _remove(self, client: Client) -> None:
        for fd in (client.connection.fileno(), client.pid_fd):
            if self._clients.pop(fd, None) is not None:
                self._poll.unregister(fd)
        client.connection.close()
        if client.pid_fd >= 0:
            os.close(client.pid_fd)
        self._stores.leave(client.user)

    def _close(self) -> None:
        self._socket.close()
        self._stores.close()  # before clients are removed: they go on, and do not leave
        for client in set(self._clients.values()):
            self._remove(client)
        self._poll.close()
        os.close(self._spare_fd)


def _refuse(connection: socket.socket, why: str) -> None:
    with connection, contextlib.suppress(OSError):
        fd_messages.send(connection, FdMessage({"refused": why}))


@contextlib.contextmanager
def _signals_as_bytes() -> Iterator[int]:
    """Yields a descriptor that becomes readable with SIGTERM or SIGINT; restores their handlers."""
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    before = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
    wakeup_before = signal.set_wakeup_fd(write_fd)
    try:
        yield read_fd
    finally:
        signal.set_wakeup_fd(wakeup_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read_fd)
        os.close(write_fd)
