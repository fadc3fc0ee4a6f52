"""Finds the cache servers of a job, and the one of this machine.

Under torchrun with several machines, torch's rendezvous store carries the servers' addresses, and a
token that the first machine draws.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, cast

from fusionloader.cache.servers.owners import Servers
from fusionloader.system.transport.address import Address, is_own
from fusionloader.system.transport.identity import draw_token

HERE_VARIABLE = "FUSIONLOADER_CACHE_SERVER"
"""Environment variable that names this machine's server, if that is ambiguous."""

_KEY = "fusionloader/cache"
_SECONDS = 300.0


class JobStore(Protocol):
    """The methods of ``torch.distributed.Store`` that are used here."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...


def listed_servers(addresses: Sequence[str], environ: Mapping[str, str] = os.environ) -> Servers:
    """Returns the servers of a user's list.

    Args:
        addresses: ``host:port`` of all servers, the same list on every machine.
        environ: environment, with ``FUSIONLOADER_CACHE_SERVER`` if several are this machine's.

    Raises:
        ValueError: an address is malformed or repeated, or not exactly one is this machine's.
    """
    parsed = {address: Address.parse(address) for address in addresses}
    if len(parsed) != len(addresses):
        raise ValueError(f"servers names one twice: {', '.join(addresses)}")
    for address, found in parsed.items():
        if not found.port:
            raise ValueError(f"servers should name the port of {address!r}: all have to know it")
    listen = environ.get(HERE_VARIABLE)
    if listen is not None and listen not in parsed:
        raise ValueError(f"{HERE_VARIABLE} is {listen!r}, not one of {', '.join(addresses)}")
    own = [listen] if listen else [text for text, each in parsed.items() if is_own(each.host)]
    if len(own) != 1:
        what = f"{' and '.join(own)} are" if own else f"none of {', '.join(addresses)} is"
        raise ValueError(f"{what} this machine's: set {HERE_VARIABLE} to the one that is")
    return Servers(tuple(parsed), own[0])


@dataclass(frozen=True, slots=True)
class Machines:
    """The machines of a job, in torchrun's numbering.

    Attributes:
        number: number of this machine.
        count: number of machines.
        is_first_rank: whether this is the machine's first process.
        master: host and port of the rendezvous.
        attempt: number of restarts of the job; values of earlier attempts are not used.
    """

    number: int
    count: int
    is_first_rank: bool
    master: Address
    attempt: str = "0"

    def key(self, name: str, what: object) -> str:
        return f"{_KEY}/{self.attempt}/{name}/{what}"


def read_machines(environ: Mapping[str, str] = os.environ) -> Machines | None:
    """Returns the machines of this job from the environment; ``None`` if there is only one.

    Raises:
        ValueError: torchrun's variables are incomplete or no numbers.
    """
    if environ.get("GROUP_WORLD_SIZE", "1") == "1":
        return None
    try:
        master = Address.parse(f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}")
        numbers = [int(environ[name]) for name in ("GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK")]
    except KeyError as error:
        raise ValueError(
            f'servers="auto" needs the environment of torchrun, which has no {error.args[0]} here: '
            "list the servers"
        ) from None
    except ValueError as error:
        raise ValueError(
            f'servers="auto" cannot read the environment of torchrun: {error}'
        ) from None
    attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Machines(numbers[0], numbers[1], numbers[2] == 0, master, attempt)


def agree_on_token(store: JobStore, machines: Machines, name: str) -> bytes:
    """Returns the token of a job's cache; the first process of the first machine draws it."""
    key = machines.key(name, "token")
    if machines.number == 0 and machines.is_first_rank:
        store.set(key, draw_token().hex())
    return bytes.fromhex(_get(store, key, "the first machine").decode())


def exchange(store: JobStore, machines: Machines, name: str, port: int | None) -> Servers:
    """Publishes this machine's server, and returns the servers of all machines.

    Args:
        store: the job's store.
        machines: machines of the job.
        name: name of the cache within the job, the same on all machines.
        port: port of this machine's server; ``None`` if another process publishes it.

    Raises:
        ValueError: another machine has published no server after 300 s.
    """
    if port is not None:
        store.set(machines.key(name, machines.number), str(Address(own_host(machines), port)))
    addresses = [
        _get(store, machines.key(name, number), f"machine {number}").decode()
        for number in range(machines.count)
    ]
    return Servers(tuple(addresses), addresses[machines.number])


def _get(store: JobStore, key: str, who: str) -> bytes:
    try:
        store.wait([key], timedelta(seconds=_SECONDS))
    except Exception as error:  # torch's exceptions differ between stores and releases
        raise ValueError(
            f'servers="auto": {who} has not started its cache server within {_SECONDS:.0f} s '
            f"({error})"
        ) from error
    return bytes(store.get(key))


def own_host(machines: Machines) -> str:
    """Returns the address by which the other machines reach this one.

    On the job's master that is the master's name, elsewhere the address from which this machine
    reaches the master.
    """
    if is_own(machines.master.host):
        return machines.master.host
    family, _, _, _, there = socket.getaddrinfo(*machines.master, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(there)  # sends nothing
        return str(probe.getsockname()[0])


def find_job_store(machines: Machines, environ: Mapping[str, str] = os.environ) -> JobStore:
    """Returns torch's rendezvous store.

    Raises:
        ValueError: there is none, because torch.distributed is not initialized.
    """
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return cast(JobStore, distributed.distributed_c10d._get_default_store())
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise ValueError(
            'servers="auto" finds the other machines through torch.distributed: call '
            "init_process_group() before the first iter(), or list the servers"
        )
    store = vars(distributed)["TCPStore"](*machines.master, is_master=False)
    return cast(JobStore, store)
