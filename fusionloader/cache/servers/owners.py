"""Owners of samples by rendezvous hashing, which needs no communication.

Every server has a score for every sample, and the server with the highest score owns the sample. If
a server is gone, only its samples get other owners, spread evenly over the remaining servers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of splitmix64


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of a job.

    Attributes:
        addresses: ``host:port`` of all servers, the same on every machine; also their names in the
            choice of owners.
        here: address of this machine's server.
    """

    addresses: tuple[str, ...]
    here: str


class Owners:
    """The owners of all samples of a dataset.

    Attributes:
        servers: names of the servers, the same on every machine, in any order.
    """

    def __init__(self, servers: Sequence[str], seed: bytes) -> None:
        """``seed`` identifies the dataset, the same on every machine.

        Raises:
            ValueError: there is no server, or a name is repeated.
        """
        if not servers or len(set(servers)) != len(servers):
            raise ValueError(f"servers should be several different names, not {list(servers)!r}")
        self.servers = tuple(servers)
        self._keys = {server: _key(seed, server) for server in servers}

    def owner(self, item: int, gone: Collection[str] = ()) -> str | None:
        """Returns the owner of a sample among servers that are not ``gone``, if any."""
        place = _spread(item)
        best, most = None, -1
        for server, key in self._keys.items():
            if server not in gone:
                score = _spread(place ^ key)
                if score > most:
                    best, most = server, score
        return best


def _key(seed: bytes, server: str) -> int:
    digest = hashlib.blake2b(server.encode(), key=hashlib.sha256(seed).digest(), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def _spread(value: int) -> int:
    """Returns a 64-bit hash of ``value``, by splitmix64."""
    value = (value + _ODD) & _MASK
    value = ((value ^ (value >> 30)) * _MIX[0]) & _MASK
    value = ((value ^ (value >> 27)) * _MIX[1]) & _MASK
    return value ^ (value >> 31)
