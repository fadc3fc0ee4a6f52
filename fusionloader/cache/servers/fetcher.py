"""What a worker asks other machines for, a tiny-batch at a time.

A sample that another server owns is asked for there. What the owner lacks is read from storage and
given to it, so that the next one finds it. Where an owner does not answer it is gone for a while,
and its samples have other owners, of which some may be this machine.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fusionloader.cache.remote_files import BroughtFile, RangeOf
from fusionloader.cache.servers import files, requests
from fusionloader.cache.servers.files import File
from fusionloader.cache.servers.owners import Owners, Servers
from fusionloader.cache.servers.requests import MalformedRequest, Stamp, Status, WantedFile
from fusionloader.cache.servers.server import SERVICE
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.errors import TransportError
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.messages import Outgoing
from fusionloader.system.transport.peer import Peer

log = logging.getLogger("fusionloader.cache")


@dataclass(slots=True)
class FetchCounts:
    """What a worker has asked for since it began.

    Attributes:
        hits: samples that another server had.
        misses: samples that it had not, read from storage.
        bytes_received: of the hits.
        bytes_given: of what was read and given to owners.
        failures: requests that a server did not answer.
        seconds: in ``bring``.
    """

    hits: int = 0
    misses: int = 0
    bytes_received: int = 0
    bytes_given: int = 0
    failures: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ServedFiles:
    """What a worker's process needs to ask other machines for files of a dataset.

    Attributes:
        servers: of the job.
        fingerprint: 32 bytes that tell the dataset, the same on every machine.
    """

    servers: Servers
    fingerprint: bytes

    def open(self, identity_fd: int, range_of: RangeOf) -> Fetcher:
        """Returns what asks for them, with the identity in the memory of a descriptor."""
        return Fetcher(self.servers, self.fingerprint, Identity(os.dup(identity_fd)), range_of)


Share = list[WantedFile]
"""What one server is asked for."""


class Fetcher:
    """Brings samples of one dataset. Belongs to one process, and one thread.

    Attributes:
        counts: what it has done.
    """

    def __init__(
        self,
        servers: Servers,
        fingerprint: bytes,
        identity: Identity,
        range_of: RangeOf,
        warn: Callable[[str], None] = log.warning,
        least: float | None = None,
        absence: float = 1.0,
    ) -> None:
        """Connects to nobody yet.

        Args:
            servers: of the job.
            fingerprint: 32 bytes that tell the dataset, the same on every machine.
            identity: what all servers have.
            range_of: where a sample is.
            warn: is told when a server is gone, once until it is back.
            least: seconds that any answer is waited for; 0.5 unless given.
            absence: seconds until a server that failed is tried again, the first time.
        """
        self.counts = FetchCounts()
        self._here = servers.here
        self._fingerprint = fingerprint
        self._owners = Owners(servers.addresses, fingerprint)
        self._range_of = range_of
        self._warn = warn
        self._brought: dict[int, File] = {}
        self._stamps: dict[int, Stamp | None] = {}
        self._peers = {
            name: Peer(Address.parse(name), identity, SERVICE, least, absence)
            for name in servers.addresses
            if name != servers.here
        }

    def bring(self, items: Iterable[int]) -> list[BroughtFile]:
        """Returns the bytes of samples that other servers own.

        Those of this machine's own samples are not among them, nor are those of files that cannot
        be read: whoever asks reads these from storage, or finds out what is wrong with them. The
        bytes are valid until the next call.
        """
        began = time.perf_counter()
        self._brought = {}
        self._stamps = {}
        wanted = list(items)
        while shares := self._shares(wanted):
            # A server that is asked again puts its answer where the one before was.
            self._brought = {item: each.copied() for item, each in self._brought.items()}
            wanted = [each.item for share in self._ask(shares) for each in share]
        seconds = time.perf_counter() - began
        self.counts.seconds += seconds
        share = seconds / max(1, len(self._brought))
        return [
            BroughtFile(item, *each.stamp, each.data, each.is_hit, share)
            for item, each in self._brought.items()
        ]

    def close(self) -> None:
        """Ends the connections."""
        for peer in self._peers.values():
            peer.close()

    def _gone(self) -> list[str]:
        return [name for name, peer in self._peers.items() if not peer.may_be_asked()]

    def _shares(self, items: list[int]) -> dict[str, Share]:
        """Returns what to ask each server for: nothing that this machine owns by now."""
        gone = self._gone() if items else []
        shares: dict[str, Share] = {}
        for item in items:
            owner = self._owners.owner(item, gone)
            if owner is None or owner == self._here:
                continue
            stamp = self._stamp(item)
            if stamp is not None:
                shares.setdefault(owner, []).append(WantedFile(item, stamp))
        return shares

    def _stamp(self, item: int) -> Stamp | None:
        """Returns the stamp of a file that may be held elsewhere."""
        if item not in self._stamps:
            self._stamps[item] = files.stamp_of(self._range_of(item))
        return self._stamps[item]

    def _ask(self, shares: dict[str, Share]) -> list[Share]:
        """Asks all owners at once, takes the answers as they come; returns what had none."""
        asked: dict[int, str] = {}
        unanswered: list[Share] = []
        for name, share in shares.items():
            head = requests.encode(self._fingerprint, share)
            try:
                self._peers[name].send(Outgoing(requests.GET, head))
                asked[self._peers[name].fileno()] = name
            except TransportError as error:
                self._lost(name, error)
                unanswered.append(share)
        for name in self._as_they_answer(asked):
            try:
                self._receive(name, shares[name])
            except (TransportError, MalformedRequest) as error:
                self._lost(name, error)
                unanswered.append(shares[name])
        unanswered += [shares[name] for name in asked.values()]
        return unanswered

    def _as_they_answer(self, asked: dict[int, str]) -> Iterator[str]:
        """Yields servers in the order of their answers; those that do not answer stay in asked."""
        poll = select.poll()
        for fd in asked:
            poll.register(fd, select.POLLIN)
        began = time.monotonic()
        patience = max((self._peers[name].deadline for name in asked.values()), default=0.0)
        while asked and (left := began + patience - time.monotonic()) > 0:
            for fd, _ in poll.poll(1000 * left):
                poll.unregister(fd)
                yield asked.pop(fd)
        for name in asked.values():
            self._lost(name, TransportError("does not answer in time"))

    def _receive(self, name: str, share: Share) -> None:
        message = self._peers[name].receive()
        if message.kind != requests.ITEMS:
            raise MalformedRequest(f"sends a message of kind {message.kind} for samples")
        statuses = requests.decode_statuses(message.head, share, message.body.nbytes)
        self._answered(name)
        start = 0
        for (item, stamp), status in zip(share, statuses, strict=True):
            if status is Status.HIT:
                data = message.body[start : start + stamp.nbytes]
                self._brought[item] = File(stamp, data, True)
                start += stamp.nbytes
        self.counts.hits += statuses.count(Status.HIT)
        self.counts.bytes_received += start
        for wanted, status in zip(share, statuses, strict=True):
            read = None if status is Status.HIT else self._read(wanted.item)
            if read is not None and status is Status.ABSENT:
                self._give(name, wanted.item, read)

    def _read(self, item: int) -> File | None:
        """Reads a sample that its owner lacks; a file that cannot be read is left to others."""
        found = files.read(self._range_of(item))
        if found is not None:
            self.counts.misses += 1
            self._brought[item] = found
        return found

    def _give(self, name: str, item: int, read: File) -> None:
        """Gives the owner what was read."""
        peer = self._peers[name]
        if not peer.may_be_asked() or len(read.data) > requests.MOST_BYTES:
            return
        head = requests.encode(self._fingerprint, [WantedFile(item, read.stamp)])
        try:
            peer.send(Outgoing(requests.GIVE, head, [read.data]))
            self.counts.bytes_given += len(read.data)
        except TransportError as error:
            self._lost(name, error)

    def _lost(self, name: str, error: Exception) -> None:
        peer = self._peers[name]
        seconds = peer.failed()
        self.counts.failures += 1
        if not peer.warned:
            peer.warned = True
            self._warn(
                f"the cache server {name} {error}: other servers and storage stand in for it, and "
                f"it is tried again in {seconds:.0f} s"
            )

    def _answered(self, name: str) -> None:
        peer = self._peers[name]
        if peer.warned:
            peer.warned = False
            log.info("the cache server %s answers again", name)
