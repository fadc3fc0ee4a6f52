"""A cache server: sends cached files to workers of other machines, and accepts files for its cache.

It runs in the process that holds the cache of a machine, and does not import torch. Bytes are sent
directly from the cache, which never evicts anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fusionloader.cache.servers import requests
from fusionloader.cache.servers.requests import MalformedRequest, Status, WantedFile
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.listener import Listener, Service
from fusionloader.system.transport.messages import Message, Outgoing, refusal

if TYPE_CHECKING:
    from fusionloader.cache.servers.joining import ServedTiers

SERVICE = "fusionloader cache 1"
"""Name of the service; the number changes with the format in ``requests``."""


class CacheServer:
    """Answers the requests of clients, from construction until ``close()``.

    Attributes:
        address: address that it listens at, with the actual port.
    """

    def __init__(
        self,
        address: Address,
        identity: Identity,
        find_store: Callable[[bytes], ServedTiers | None],
    ) -> None:
        """``find_store`` returns the store of a dataset by its fingerprint, or ``None``.

        Raises:
            OSError: it cannot listen at ``address``.
        """
        self._find_store = find_store
        service = Service(lambda: self._answer, requests.MOST_BYTES)
        self._listener = Listener(address, identity, {SERVICE: service})
        self.address = self._listener.address

    def close(self) -> None:
        self._listener.close()

    def _answer(self, message: Message) -> Outgoing | None:
        try:
            if message.kind == requests.GET:
                return self._get(message)
            if message.kind == requests.GIVE:
                self._take(message)
                return None
        except MalformedRequest as error:
            return refusal(f"refuses what it was asked: {error}")
        return refusal(f"does not know messages of kind {message.kind}")

    def _get(self, message: Message) -> Outgoing:
        fingerprint, wanted = requests.decode(message.head)
        store = self._find_store(fingerprint)
        if store is None:
            return refusal("holds no cache of this dataset")
        found = [_look_up(store, each) for each in wanted]
        body = [data for data in found if isinstance(data, memoryview)]
        statuses = bytes(Status.HIT if isinstance(each, memoryview) else each for each in found)
        return Outgoing(requests.ITEMS, statuses, body, holds=store)

    def _take(self, message: Message) -> None:
        fingerprint, wanted = requests.decode(message.head)
        nbytes = [each.stamp.nbytes for each in wanted]
        if nbytes != [message.body.nbytes]:
            raise MalformedRequest(f"{message.body.nbytes} bytes were given for {nbytes}")
        store = self._find_store(fingerprint)
        if store is not None:
            store.put(*wanted[0], message.body)


def _look_up(store: ServedTiers, wanted: WantedFile) -> memoryview | Status:
    item, stamp = wanted
    data = store.get(item, stamp)
    if data is not None and data.nbytes == stamp.nbytes:
        return data
    return Status.ABSENT if store.lacks(item, stamp.nbytes) else Status.UNWANTED
