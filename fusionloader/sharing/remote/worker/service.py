"""A remote worker: prepares tiny-batches of loaders on other machines. Imports no torch."""

from __future__ import annotations

import operator
import os
import socket
import threading

from fusionloader.sharing.remote import protocol
from fusionloader.sharing.remote.protocol import Ready
from fusionloader.sharing.remote.user_code.store import CodeStore
from fusionloader.sharing.remote.worker.reading import EncodedCache
from fusionloader.sharing.remote.worker.worker_session import WorkerCounts, WorkerSession
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.listener import Answer, Listener, Service
from fusionloader.system.transport.messages import Message, Outgoing, refusal


class WorkerService:
    """Serves any number of loaders, from its creation until ``close()``.

    Each connection has a thread, and ``cores`` of them work at once; native code releases the GIL.

    Attributes:
        address: address at which it listens, with the actual port.
        counts: what it has done since it began.
    """

    def __init__(
        self,
        address: Address,
        identity: Identity,
        cores: int,
        cache_bytes: int = 0,
        code: CodeStore | None = None,
    ) -> None:
        """Listens for loaders with the same ``identity``.

        Args:
            address: address to listen at; port 0 stands for any free one.
            identity: credentials that loaders and workers share.
            cores: number of requests that are worked on at once.
            cache_bytes: memory for the bytes of files that were read, 0 for no cache.
            code: user code that Ray brings, for a worker of one core.

        Raises:
            OSError: it cannot listen there.
            ValueError: ``cores`` is less than 1.
        """
        if cores < 1:
            raise ValueError(f"a worker needs a core, not {cores}")
        self._ready = Ready(f"{socket.gethostname()}, pid {os.getpid()}", cores)
        self._code = code
        self._cores = threading.BoundedSemaphore(cores)
        self.counts = WorkerCounts()
        self._cache = EncodedCache(cache_bytes) if cache_bytes else None
        self._lock = threading.Lock()
        self._leaving = threading.Event()
        services = {protocol.SERVICE: Service(self._begin, protocol.MOST_BODY)}
        self._listener = Listener(address, identity, services)
        self.address = self._listener.address

    def drain(self, timeout: float = 1.5) -> bool:
        """Refuses new requests, and waits for those under way.

        Returns ``False`` if some are still under way after ``timeout`` seconds.
        """
        self._leaving.set()
        return self._listener.wait_until_answered(timeout)

    def close(self) -> None:
        """Ends all connections, once the requests under way on them are done."""
        self._listener.close()

    def _begin(self) -> Answer:
        session = WorkerSession(self._ready, self._cores, self._count, self._cache, self._code)

        def answer(message: Message) -> Outgoing:
            if self._leaving.is_set():
                return refusal(f"{protocol.LEAVING}: ask another")
            return session.answer(message)

        return answer

    def _count(self, done: WorkerCounts) -> None:
        with self._lock:
            self.counts = WorkerCounts(*map(operator.add, self.counts, done))
