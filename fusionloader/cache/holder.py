"""The holder: the service that owns the memory of all caches of a user on a machine.

It maps no data and fills nothing: it makes memory, hands out descriptors, and knows the processes
that use them. A user is a connection that has attached to a dataset.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

from fusionloader.cache.holder_socket import HolderSocket
from fusionloader.cache.protocol import answer
from fusionloader.cache.stores import CacheStores, User
from fusionloader.system.fd_messages import FdMessage
from fusionloader.system.limits.open_files import allow_many_files
from fusionloader.system.local_service import LocalPeer, LocalService

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Holder(LocalService[LocalPeer]):
    """Answers requests for memory until there is nothing left to hold."""

    name = "the cache holder"

    def __init__(self, claimed: HolderSocket, stores: CacheStores, lives_on: bool) -> None:
        """With ``lives_on`` it ends by a signal only, else when there is nothing left to hold."""
        super().__init__(claimed.listener, LocalPeer)
        self._socket, self._stores, self._lives_on = claimed, stores, lives_on
        self._users: dict[LocalPeer, User] = {}

    def serve(self) -> None:
        """Serves until there is nothing left to hold, or SIGTERM or SIGINT ask it to end."""
        allow_many_files()  # each user takes two, each dataset up to eight
        with _signals_as_bytes() as signals:
            self.watch(signals, self.end)
            super().serve()
            self.unwatch(signals)
        self.close()

    def is_needed(self) -> bool:
        """Whether it holds anything, or is to live on."""
        return self._lives_on or not self._stores.is_empty()

    def joined(self, peer: LocalPeer) -> None:
        """Has no user yet: the request says so."""
        self._users[peer] = User(peer.pid)

    def handle(self, peer: LocalPeer, message: FdMessage) -> bool:
        """Answers a request. The connection stays open as long as it is a user's."""
        message.close()  # no request has descriptors
        user = self._users[peer]
        if self._stores.is_used_by(user):
            return True  # nothing is expected of a user but the end of its connection
        reply = answer(self._stores, user, message.fields)
        return peer.reply(reply.fields, reply.payload, reply.fds) and self._stores.is_used_by(user)

    def left(self, peer: LocalPeer) -> None:
        """Ends a use."""
        self._stores.leave(self._users.pop(peer))

    def close(self) -> None:
        """Removes the socket and all memory; users go on with what they have mapped."""
        self._socket.close()
        self._stores.close()  # before peers are removed, so that they do not leave
        super().close()


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
