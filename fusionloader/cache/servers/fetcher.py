"""A worker's requests to cache servers, one tiny-batch at a time.

A sample is requested from the server that owns it. If the owner lacks it, the worker reads it from
storage and sends it to the owner. If an owner does not answer, it counts as gone for a while: then
its samples have other owners, which may include this machine.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fusionloader.cache.range_reading import FileRange, FileStamp, open_file, read_range
from fusionloader.cache.remote_files import BroughtFile, RangeOf
from fusionloader.cache.servers import requests
from fusionloader.cache.servers.owners import Owners, Servers
from fusionloader.cache.servers.requests import MalformedRequest, Status, WantedFile
from fusionloader.cache.servers.server import SERVICE
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.errors import TransportError
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.messages import Outgoing
from fusionloader.system.transport.peer import Peer

log = logging.getLogger("fusionloader.cache")


@dataclass(frozen=True, slots=True)
class ServedFiles:
    """The cache servers of a dataset, pickled into a worker's process.

    Attributes:
        servers: servers of the job.
        fingerprint: 32 bytes that identify the dataset, the same on every machine.
    """

    servers: Servers
    fingerprint: bytes

    def open(self, identity_fd: int, range_of: RangeOf) -> Fetcher:
        return Fetcher(self.servers, self.fingerprint, Identity(os.dup(identity_fd)), range_of)


@dataclass(frozen=True, slots=True)
class File:
    """The bytes of a file, from another server's cache (``is_hit``) or from storage."""

    stamp: FileStamp
    data: bytes | memoryview
    is_hit: bool

    def copied(self) -> File:
        return File(self.stamp, bytes(self.data), self.is_hit)


Share = list[WantedFile]
"""The files that one server is asked for."""


class Fetcher:
    """Fetches samples of one dataset. For one thread of one process."""

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
        """Connects only when samples are requested.

        Args:
            servers: servers of the job.
            fingerprint: 32 bytes that identify the dataset, the same on every machine.
            identity: identity that all servers share.
            range_of: returns the range of a sample.
            warn: called when a server is gone, once until it answers again.
            least: least timeout of an answer in seconds, 0.5 by default.
            absence: seconds until a server is tried again after its first failure.
        """
        self._here = servers.here
        self._fingerprint = fingerprint
        self._owners = Owners(servers.addresses, fingerprint)
        self._range_of = range_of
        self._warn = warn
        self._brought: dict[int, File] = {}
        self._stamps: dict[int, FileStamp | None] = {}
        self._peers = {
            name: Peer(Address.parse(name), identity, SERVICE, least, absence)
            for name in servers.addresses
            if name != servers.here
        }

    def bring(self, items: Iterable[int]) -> list[BroughtFile]:
        """Returns the bytes of samples that other servers own.

        Samples that this machine owns and files that cannot be read are left out: the caller reads
        these from storage, and raises their errors. The bytes are valid until the next call.
        """
        began = time.perf_counter()
        self._brought = {}
        self._stamps = {}
        wanted = list(items)
        while shares := self._shares(wanted):
            # Another answer of the same server overwrites the memory of its previous one.
            self._brought = {item: each.copied() for item, each in self._brought.items()}
            wanted = [each.item for share in self._ask(shares) for each in share]
        share = (time.perf_counter() - began) / max(1, len(self._brought))
        return [
            BroughtFile(item, *each.stamp, each.data, each.is_hit, share)
            for item, each in self._brought.items()
        ]

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()

    def _gone(self) -> list[str]:
        return [name for name, peer in self._peers.items() if not peer.may_be_asked()]

    def _shares(self, items: list[int]) -> dict[str, Share]:
        """Returns the files to request from each server, without those that this machine owns."""
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

    def _stamp(self, item: int) -> FileStamp | None:
        """Returns the stamp of a file, read once per call of ``bring``."""
        if item not in self._stamps:
            self._stamps[item] = read_stamp(self._range_of(item))
        return self._stamps[item]

    def _ask(self, shares: dict[str, Share]) -> list[Share]:
        """Sends all requests, then takes answers as they arrive; returns the unanswered shares."""
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
        unanswered += [shares[name] for name in asked.values()]  # those that timed out
        return unanswered

    def _as_they_answer(self, asked: dict[int, str]) -> Iterator[str]:
        """Yields servers in the order of their answers; silent ones stay in ``asked``."""
        poll = select.poll()
        for fd in asked:
            poll.register(fd, select.POLLIN)
        began = time.monotonic()
        patience = max((self._peers[name].deadline for name in asked.values()), default=0.0)
        # Once more after the deadline: the caller may have read storage since answers came.
        while asked and (ready := poll.poll(1000 * max(0.0, began + patience - time.monotonic()))):
            for fd, _ in ready:
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
        for wanted, status in zip(share, statuses, strict=True):
            read = None if status is Status.HIT else self._read(wanted.item)
            if read is not None and status is Status.ABSENT:
                self._give(name, wanted.item, read)

    def _read(self, item: int) -> File | None:
        """Reads a sample that its owner lacks; ``None`` if that fails."""
        found = read_file(self._range_of(item))
        if found is not None:
            self._brought[item] = found
        return found

    def _give(self, name: str, item: int, read: File) -> None:
        peer = self._peers[name]
        if not peer.may_be_asked() or len(read.data) > requests.MOST_BYTES:
            return
        head = requests.encode(self._fingerprint, [WantedFile(item, read.stamp)])
        try:
            peer.send(Outgoing(requests.GIVE, head, [read.data]))
        except TransportError as error:
            self._lost(name, error)

    def _lost(self, name: str, error: Exception) -> None:
        peer = self._peers[name]
        seconds = peer.failed()
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


# ---- storage -----------------------------------------------------------------------------------


def read_stamp(where: FileRange) -> FileStamp | None:
    """Returns the stamp of a file or range; ``None`` if it is unreadable, changed or too large.

    The size in a range's stamp is that of the range.
    """
    try:
        stamp = FileStamp.of(os.stat(where.file))
    except OSError:
        return None
    if where.nbytes:
        if stamp != (where.file_bytes, where.mtime_ns):
            return None
        stamp = FileStamp(where.nbytes, where.mtime_ns)
    return stamp if 0 < stamp.nbytes <= requests.MOST_BYTES else None


def read_file(where: FileRange) -> File | None:
    """Reads a file or a range from storage; returns ``None`` if that fails."""
    try:
        if where.nbytes:
            return File(FileStamp(where.nbytes, where.mtime_ns), read_range(where), False)
        with open_file(where.file) as file:
            stamp = FileStamp.of(os.fstat(file.fileno()))
            data = file.read()
            if stamp != FileStamp.of(os.fstat(file.fileno())):  # it is being written
                return None
    except OSError:
        return None
    return File(stamp, data, False) if len(data) == stamp.nbytes else None
