"""The messages between a training process and the process that talks to Ray."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fusionloader.sharing.remote.user_code.bundle import CodeBundle
from fusionloader.system.transport.address import Address


@dataclass(frozen=True, slots=True)
class Start:
    """The first message: which cluster to join, and which workers to start.

    Attributes:
        token: token from which the workers' credentials are made.
        version: version of fusionloader that the workers must have.
        address: address of the cluster: ``"host:port"``, ``"ray://host:port"``, ``"auto"`` for one
            that runs on this machine or else a new one, ``"local"`` for a new one.
        node_ip: address of this machine's node in the cluster, ``None`` if Ray finds it.
        runtime_env: runtime environment of the Ray session that training has joined.
        wish: number of workers to start; ``None`` for one on each free CPU.
        loader_cores: CPUs of this machine that no worker gets if the cluster has no other machine.
        code: user code for the workers, if any.
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
    """The number of workers that there should be from now on."""

    count: int | None


@dataclass(frozen=True, slots=True)
class Close:
    """Ends all workers and the process."""


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """The process has joined the cluster at ``address``, or has ``started`` it."""

    address: str
    started: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """The process cannot join a cluster, and the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers as they are now.

    Attributes:
        addresses: addresses of the workers that have answered.
        starting: number of workers that have not answered yet.
        only_here: whether the cluster has no CPUs but those of this machine.
        problem: the last problem; ``None`` if a worker has answered since.
    """

    addresses: tuple[Address, ...] = ()
    starting: int = 0
    only_here: bool = False
    problem: str | None = None
