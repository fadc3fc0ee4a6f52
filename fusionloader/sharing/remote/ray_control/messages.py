"""What a training process and the process that speaks to Ray say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fusionloader.sharing.remote.user_code.bundle import CodeBundle
from fusionloader.system.transport.address import Address


@dataclass(frozen=True, slots=True)
class Start:
    """The first message: which cluster to join, and which workers to start.

    Attributes:
        token: that workers get.
        version: of fusionloader, that they are to have.
        address: of the cluster: ``"host:port"``, ``"ray://host:port"``, ``"auto"`` for one that
            runs on this machine or else a new one, ``"local"`` for a new one.
        node_ip: address of this machine's node in the cluster, ``None`` where Ray finds it.
        runtime_env: of the Ray session that training is part of.
        wish: workers to start; ``None`` for one on each free CPU.
        code: user code that workers get, if any.
        loader_cores: of this machine that are left to the loader, where Ray is to use the others.
    """

    token: bytes
    version: str
    address: str
    node_ip: str | None
    runtime_env: dict[str, Any] | None
    wish: int | None
    loader_cores: int
    code: CodeBundle | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """How many workers there should be from now on."""

    count: int | None


@dataclass(frozen=True, slots=True)
class Close:
    """To end all workers and the process."""


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """It is part of a cluster; ``started`` says that it has started it."""

    address: str
    started: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """It cannot join a cluster, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers as they are now.

    Attributes:
        addresses: of those that have answered.
        starting: how many have not yet.
        only_here: whether the cluster has no CPUs but this machine's.
        problem: what went wrong last, or ``None``.
    """

    addresses: tuple[Address, ...] = ()
    starting: int = 0
    only_here: bool = False
    problem: str | None = None
