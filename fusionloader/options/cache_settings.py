"""Settings of a cache: ``Cache`` and ``DecodedCache``."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from fusionloader.system.amounts import parse_bytes

Tier = Literal["index", "encoded", "decoded"]

TIERS: tuple[Tier, ...] = ("index", "encoded", "decoded")
_ADDRESS = re.compile(r"[^\s:]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")


@dataclass(frozen=True)
class Cache:
    """A cache of files, so that epochs after the first need not read or decode them; never evicts.

    The first epoch fills it, in shared memory, for all ranks, loaders and jobs of the user on this
    machine that load the same files. Whether a sample is cached as encoded bytes or as decoded
    pixels is decided from measured rates. Source: MinIO of CoorDL (PVLDB 14(5), §6.1).

    Args:
        budget: bytes of shared memory, as a number or ``"32GiB"``; with ``path``, bytes of that
            disk. Includes the cache's own tables.
        tiers: content that may be cached: ``"index"``, decoder positions in each JPEG, about 1 KB;
            ``"encoded"``, the files; ``"decoded"``, their pixels before augmentation.
        path: a folder on a local disk, where the cache outlives the job.
        memory: with ``path``: bytes of shared memory that are filled before the disk.
        servers: ``"auto"``, or the addresses (``"host:port"``) of the machines among which the
            samples are divided: each caches its part, and sends it to the others.
        token_file: a file with the secret that the listed servers share.

    Raises:
        ValueError: a value is out of its range, or two of them contradict each other.
    """

    budget: int | str
    tiers: Sequence[Tier] = field(default=TIERS, kw_only=True)
    path: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    memory: int | str | None = field(default=None, kw_only=True)
    servers: Literal["auto"] | Sequence[str] | None = field(default=None, kw_only=True)
    token_file: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    token: str = field(
        default_factory=lambda: secrets.token_hex(16), init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        parse_bytes(self.budget, "budget")
        object.__setattr__(self, "tiers", self._checked_tiers())
        if self.memory is not None:
            parse_bytes(self.memory, "memory")
            if self.path is None:
                raise ValueError("memory= is for a cache with a path: without one it is the budget")
        if self.servers is not None:
            self._check_servers()

    def _checked_tiers(self) -> tuple[Tier, ...]:
        if isinstance(self.tiers, str) or not self.tiers or set(self.tiers) - set(TIERS):
            raise ValueError(f"tiers should be some of {TIERS}, not {self.tiers!r}")
        return tuple(tier for tier in TIERS if tier in self.tiers)

    def _check_servers(self) -> None:
        if "encoded" not in self.tiers:
            raise ValueError('servers give each other files: tiers should have "encoded"')
        if self.servers == "auto":
            return
        found = self.servers
        if isinstance(found, str) or not found or not all(map(_is_address, found)):
            raise ValueError(f'servers should be "auto" or addresses as "host:port", not {found!r}')
        if len(set(found)) != len(found):
            raise ValueError(f"an address is given twice in servers={found!r}")
        object.__setattr__(self, "servers", tuple(found))

    def __getstate__(self) -> dict[str, object]:
        """Returns the fields alone, without objects that belong to this process."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def memory_bytes(self) -> int:
        """Budget of shared memory, in bytes."""
        if self.path is None:
            return parse_bytes(self.budget)
        return 0 if self.memory is None else parse_bytes(self.memory)

    @property
    def disk_bytes(self) -> int:
        """Budget of the disk, in bytes."""
        return 0 if self.path is None else parse_bytes(self.budget)


def _is_address(value: object) -> bool:
    return isinstance(value, str) and _ADDRESS.fullmatch(value) is not None


@dataclass(frozen=True)
class DecodedCache(Cache):
    """A ``Cache`` of decoded images alone, in shared memory.

    Args:
        budget: bytes of shared memory, as a number or ``"8GiB"``. Includes the cache's own tables.

    Raises:
        ValueError: ``budget`` is not an amount of memory.
    """

    tiers: Sequence[Tier] = field(default=("decoded",), init=False)
