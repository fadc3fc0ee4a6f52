"""A machine's part in a cache across servers: its server, and what its workers ask others with."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from fusionloader.cache.servers import discovery
from fusionloader.cache.servers.fetcher import ServedFiles
from fusionloader.cache.servers.owners import Servers
from fusionloader.cache.servers.server import CacheServer
from fusionloader.cache.servers.shelf import StoreShelf
from fusionloader.cache.tiers.store_handles import StoreHandles
from fusionloader.options.cache_settings import Cache
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity, read_token

_ANY_PORT = Address("0.0.0.0", 0)  # noqa: S104 - who connects has to show the token


class MachineServer:
    """This machine's server, for all its datasets; ends with its last user in this process.

    Attributes:
        shelves: what is given away, by fingerprint, as long as others refer to it.
        port: on which it listens.
    """

    def __init__(self, address: Address, identity: Identity) -> None:
        self.shelves: weakref.WeakValueDictionary[bytes, StoreShelf] = weakref.WeakValueDictionary()
        server = CacheServer(address, identity, self.shelves.get)
        self.port = server.address.port
        # A forked process has the same sockets, and must not end the connections.
        weakref.finalize(self, _close_in, os.getpid(), server)


def _close_in(pid: int, server: CacheServer) -> None:
    if os.getpid() == pid:
        server.close()


_servers: weakref.WeakValueDictionary[Address, MachineServer] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class Joined:
    """A dataset that other machines hold a part of.

    Attributes:
        remote_files: for workers.
        identity: what all machines have; workers get its descriptor.
        shelf: what this process gives away.
        server: by which it does; both ``None`` where another process of the machine does.
    """

    remote_files: ServedFiles
    identity: Identity
    shelf: StoreShelf | None
    server: MachineServer | None


def is_shared(cache: Cache, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether there are other machines that have a part of a cache.

    Raises:
        ValueError: torchrun's environment cannot be read.
    """
    if cache.servers == "auto":
        return discovery.machines_of(environ) is not None
    return cache.servers is not None


def join(
    cache: Cache, fingerprint: str, handles: StoreHandles, environ: Mapping[str, str] = os.environ
) -> Joined:
    """Gives away what this machine keeps of a dataset.

    Args:
        cache: that ``is_shared``.
        fingerprint: of the files, 32 characters.
        handles: the stores of the dataset.
        environ: of the process.

    Raises:
        ValueError: the servers cannot be what was meant, or there is no token.
        OSError: the address is in use.
    """
    name = fingerprint.encode()
    member = _listed(cache, environ) if cache.servers != "auto" else _of_job(cache, name, environ)
    shelf = None
    if member.server is not None:
        shelf = member.server.shelves.get(name)
        if shelf is None:
            shelf = member.server.shelves[name] = StoreShelf(handles)
    return Joined(ServedFiles(member.servers, name), member.identity, shelf, member.server)


@dataclass(frozen=True, slots=True)
class _Member:
    servers: Servers
    identity: Identity
    server: MachineServer | None


# Of torchrun's jobs, by dataset: other machines know the address until the process ends.
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
    machines = discovery.machines_of(environ)
    assert machines is not None
    if name not in _members:
        store = discovery.store_of_job(machines, environ)
        if cache.token_file is None:
            token = discovery.token_of_job(store, machines, name.decode())
        else:
            token = read_token(cache.token_file)
        identity = Identity.of(token)
        server = MachineServer(_ANY_PORT, identity) if machines.is_first_rank else None
        port = None if server is None else server.port
        servers = discovery.exchange(store, machines, name.decode(), port)
        _members[name] = _Member(servers, identity, server)
    return _members[name]


def _serves(environ: Mapping[str, str]) -> bool:
    """Whether this is the process of its machine that serves."""
    return environ.get("LOCAL_RANK", "0") == "0"
