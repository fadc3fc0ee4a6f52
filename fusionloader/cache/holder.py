"""The holder: the service that owns the memory of a user's caches on a machine.

It allocates memory, sends descriptors, and tracks the processes that use them. It neither maps nor
fills the memory. A user, here, is a connection that has attached to a dataset.
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
    """Answers requests for memory until it holds none."""

    name = "the cache holder"

    def __init__(self, claimed: HolderSocket, stores: CacheStores, lives_on: bool) -> None:
        """With ``lives_on`` only a signal ends it; otherwise it ends when it holds no memory."""
        super().__init__(claimed.listener, LocalPeer)
        self._socket, self._stores, self._lives_on = claimed, stores, lives_on
        self._users: dict[LocalPeer, User] = {}

    def serve(self) -> None:
        """Serves until it holds no memory, or receives SIGTERM or SIGINT."""
        allow_many_files()  # two for each user, up to eight for each dataset
        with _signals_as_bytes() as signals:
            self.watch(signals, self.end)
            super().serve()
            self.unwatch(signals)
        self.close()

    def is_needed(self) -> bool:
        return self._lives_on or not self._stores.is_empty()

    def joined(self, peer: LocalPeer) -> None:
        self._users[peer] = User(peer.pid)

    def handle(self, peer: LocalPeer, message: FdMessage) -> bool:
        """Answers a request. The connection stays open only if it is a user's afterwards."""
        message.close()  # no request has descriptors
        user = self._users[peer]
        if self._stores.is_used_by(user):
            return True  # a user has nothing more to send
        reply = answer(self._stores, user, message.fields)
        return peer.reply(reply.fields, reply.payload, reply.fds) and self._stores.is_used_by(user)

    def left(self, peer: LocalPeer) -> None:
        self._stores.leave(self._users.pop(peer))

    def close(self) -> None:
        """Removes the socket and closes all memory. Users keep what they have mapped."""
        self._socket.close()
        self._stores.close()  # first, so that removing peers frees nothing twice
        super().close()


@contextlib.contextmanager
def _signals_as_bytes() -> Iterator[int]:
    """Yields a descriptor that SIGTERM or SIGINT makes readable; restores the handlers."""
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
