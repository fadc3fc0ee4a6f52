"""A cache server: gives other machines' workers what this machine holds, and takes what it lacks.

It runs in the process that holds the cache of a machine, and needs no torch. Bytes are sent from
the memory where they are kept, which is never evicted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fusionloader.cache.servers import requests
from fusionloader.cache.servers.requests import MalformedRequest, Stamp, Status, WantedFile
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.listener import Listener, Service
from fusionloader.system.transport.messages import Message, Outgoing, refusal

SERVICE = "fusionloader cache 1"
"""What both ends say they are; the number changes with what is in ``requests``."""


class Shelf(Protocol):
    """The encoded bytes of a dataset's files that a machine holds. Used by several threads."""

    def get(self, item: int, stamp: Stamp) -> memoryview | None:
        """Returns the bytes of a file, if they are here and of a file with this stamp.

        They are valid as long as the shelf is referred to.
        """

    def put(self, item: int, stamp: Stamp, data: memoryview) -> bool:
        """Keeps the bytes of a file; ``False`` if there is no room, or they are here already."""

    def lacks(self, item: int, nbytes: int) -> bool:
        """Whether nothing is here of a file, and there is room for so many bytes."""


@dataclass(slots=True)
class ServerCounts:
    """What a server has done since it began: samples, and bytes of them."""

    hits: int = 0
    misses: int = 0
    taken: int = 0
    bytes_sent: int = 0
    bytes_taken: int = 0


class CacheService:
    """Answers the requests of ``requests``, at whichever listener it is given to.

    Attributes:
        counts: what it has done.
        services: itself by its name, as listeners take services.
    """

    def __init__(self, shelf_of: Callable[[bytes], Shelf | None]) -> None:
        """``shelf_of`` returns what there is by a dataset's fingerprint."""
        self.counts = ServerCounts()
        self._lock = threading.Lock()
        self._shelf_of = shelf_of
        self.services = {SERVICE: Service(lambda: self._answer, requests.MOST_BYTES)}

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
        shelf = self._shelf_of(fingerprint)
        if shelf is None:
            return refusal("holds no cache of this dataset")
        found = [_look_up(shelf, each) for each in wanted]
        body = [data for data in found if isinstance(data, memoryview)]
        statuses = bytes(Status.HIT if isinstance(each, memoryview) else each for each in found)
        with self._lock:
            self.counts.hits += len(body)
            self.counts.misses += len(wanted) - len(body)
            self.counts.bytes_sent += sum(data.nbytes for data in body)
        return Outgoing(requests.ITEMS, statuses, body, holds=shelf)

    def _take(self, message: Message) -> None:
        fingerprint, wanted = requests.decode(message.head)
        nbytes = [each.stamp.nbytes for each in wanted]
        if nbytes != [message.body.nbytes]:
            raise MalformedRequest(f"{message.body.nbytes} bytes were given for {nbytes}")
        shelf = self._shelf_of(fingerprint)
        if shelf is not None and shelf.put(*wanted[0], message.body):
            with self._lock:
                self.counts.taken += 1
                self.counts.bytes_taken += message.body.nbytes


class CacheServer:
    """Serves from when it is made until ``close()``, at a port of its own.

    Attributes:
        address: where it listens, with the port that it got.
        counts: what it has done.
    """

    def __init__(
        self, address: Address, identity: Identity, shelf_of: Callable[[bytes], Shelf | None]
    ) -> None:
        """Listens at ``address``; ``shelf_of`` returns what there is by a dataset's fingerprint.

        Raises:
            OSError: it cannot listen there.
        """
        service = CacheService(shelf_of)
        self.counts = service.counts
        self._listener = Listener(address, identity, service.services)
        self.address = self._listener.address

    def close(self) -> None:
        """Ends all connections."""
        self._listener.close()


def _look_up(shelf: Shelf, wanted: WantedFile) -> memoryview | Status:
    item, stamp = wanted
    data = shelf.get(item, stamp)
    if data is not None and data.nbytes == stamp.nbytes:
        return data
    return Status.ABSENT if shelf.lacks(item, stamp.nbytes) else Status.UNWANTED
