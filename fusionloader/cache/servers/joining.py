"""Joins a distributed cache: starts this machine's server, and gives workers their fetchers."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from fusionloader.cache.range_reading import FileStamp
from fusionloader.cache.servers import discovery
from fusionloader.cache.servers.fetcher import ServedFiles
from fusionloader.cache.servers.owners import Servers
from fusionloader.cache.servers.server import CacheServer
from fusionloader.cache.tiers.store_handles import StoreHandles
from fusionloader.options.cache_settings import Cache
from fusionloader.system.finalizers import ExitFinalizer
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity, read_token

_ANY_PORT = Address("0.0.0.0", 0)  # noqa: S104 - who connects has to show the token
_TIERS = ("encoded", "disk_encoded")  # in the order in which they are filled


class ServedTiers:
    """The files in a dataset's encoded tiers, in memory and on a disk. Several threads use it."""

    def __init__(self, handles: StoreHandles) -> None:
        self._opened = handles.open()
        views = self._opened.views
        self._stores = [(tier, views[tier]) for tier in _TIERS if tier in views]

    def get(self, item: int, stamp: FileStamp) -> memoryview | None:
        """Returns the bytes of a file with this stamp, valid as long as this object exists."""
        for tier, store in self._stores:
            found = store.find(item, *stamp)
            if found is not None:
                return found.view if tier == "encoded" else memoryview(found.data)
        return None

    def put(self, item: int, stamp: FileStamp, data: memoryview) -> bool:
        """Caches the bytes of a file; returns ``False`` if there is no room, or a cached file."""
        if not self.lacks(item, data.nbytes):
            return False
        return any(store.put(item, *stamp, 0, 0, data) for _, store in self._stores)

    def lacks(self, item: int, nbytes: int) -> bool:
        """Whether a file is not cached, and there is room for its ``nbytes``."""
        if any(store.holds(item) for _, store in self._stores):
            return False
        return any(store.lacks(item, nbytes) for _, store in self._stores)


class MachineServer:
    """This machine's server for all datasets; ends with the last reference in this process.

    Attributes:
        stores: served stores by fingerprint, held weakly.
        port: port that it listens on.
    """

    def __init__(self, address: Address, identity: Identity) -> None:
        self.stores: weakref.WeakValueDictionary[bytes, ServedTiers] = weakref.WeakValueDictionary()
        server = CacheServer(address, identity, self.stores.get)
        self.port = server.address.port
        # Not in a forked process: it shares the sockets, and must not end the connections.
        ExitFinalizer(self, server.close)


_servers: weakref.WeakValueDictionary[Address, MachineServer] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class Joined:
    """A dataset in a distributed cache.

    Attributes:
        remote_files: makes the workers' fetchers.
        identity: identity that all machines share; workers get its descriptor.
        store: the store that this process serves.
        server: the server; both are ``None`` if another process of this machine serves.
    """

    remote_files: ServedFiles
    identity: Identity
    store: ServedTiers | None
    server: MachineServer | None


def is_shared(cache: Cache) -> bool:
    """Whether a cache is distributed over machines.

    Raises:
        ValueError: torchrun's environment cannot be read.
    """
    if cache.servers == "auto":
        return discovery.read_machines(os.environ) is not None
    return cache.servers is not None


def join(
    cache: Cache, fingerprint: str, handles: StoreHandles, environ: Mapping[str, str] = os.environ
) -> Joined:
    """Serves this machine's stores of a dataset, and returns the access to the other machines'.

    Args:
        cache: the cache, for which ``is_shared`` is true.
        fingerprint: fingerprint of the files, 32 characters.
        handles: stores of the dataset.
        environ: environment of the process.

    Raises:
        ValueError: the list of servers is wrong, or there is no token.
        OSError: the address is in use.
    """
    name = fingerprint.encode()
    member = _listed(cache, environ) if cache.servers != "auto" else _of_job(cache, name, environ)
    store = None
    if member.server is not None:
        store = member.server.stores.get(name)
        if store is None:
            store = member.server.stores[name] = ServedTiers(handles)
    return Joined(ServedFiles(member.servers, name), member.identity, store, member.server)


@dataclass(frozen=True, slots=True)
class _Member:
    servers: Servers
    identity: Identity
    server: MachineServer | None


# Members of torchrun's jobs, by dataset. Kept: other machines use the address until the job ends.
_members: dict[bytes, _Member] = {}


def _listed(cache: Cache, environ: Mapping[str, str]) -> _Member:
    assert not isinstance(cache.servers, str) and cache.servers is not None
    if cache.token_file is None:
        raise ValueError("servers that are listed need a token_file, the same on all machines")
    servers = discovery.listed_servers(cache.servers, environ)
    identity = Identity.of(read_token(cache.token_file))
    address = Address.parse(servers.here)
    server = _servers.get(address)
    if server is None and _serves(environ):
        server = _servers[address] = MachineServer(address, identity)
    return _Member(servers, identity, server)


def _of_job(cache: Cache, name: bytes, environ: Mapping[str, str]) -> _Member:
    machines = discovery.read_machines(environ)
    assert machines is not None
    if name not in _members:
        store = discovery.find_job_store(machines, environ)
        if cache.token_file is None:
            token = discovery.agree_on_token(store, machines, name.decode())
        else:
            token = read_token(cache.token_file)
        identity = Identity.of(token)
        server = MachineServer(_ANY_PORT, identity) if machines.is_first_rank else None
        port = None if server is None else server.port
        servers = discovery.exchange(store, machines, name.decode(), port)
        _members[name] = _Member(servers, identity, server)
    return _members[name]


def _serves(environ: Mapping[str, str]) -> bool:
    return environ.get("LOCAL_RANK", "0") == "0"
