"""The messages between training processes and the process that talks to Ray."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from fusionloader.sharing.remote.fleet import FleetLoad
from fusionloader.system.fd_messages import FdMessage
from fusionloader.system.transport.address import Address


@dataclass(frozen=True, slots=True)
class Start:
    """The first message of a loader: which cluster to join, and which workers it needs.

    Attributes:
        token: token from which the workers' credentials are made; ``None`` for any.
        version: version of fusionloader that the workers must have.
        address: address of the cluster: ``"host:port"``, ``"ray://host:port"``, ``"auto"`` for one
            that runs on this machine or else a new one, ``"local"`` for a new one.
        node_ip: address of this machine's node in the cluster, ``None`` if Ray finds it.
        runtime_env: runtime environment of the Ray session that training has joined.
        workers: fewest and most workers for the loader; ``None`` for one on each free CPU.
        needed: number of workers that it needed when it was connected before, if it was.
        loader_cores: CPUs of this machine that no worker gets if the cluster has no other machine.
        join_seconds: seconds within which the cluster has to be joined.
        rank: the training process's rank on its machine, 0 if it is the only one.
    """

    token: bytes | None
    version: str
    address: str
    node_ip: str | None
    runtime_env: dict[str, Any] | None
    workers: tuple[int, int] | None
    loader_cores: int
    join_seconds: float
    needed: int | None = None
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Code:
    """User code for the workers, in the memory whose descriptor comes with the message.

    Attributes:
        nbytes: size of the pickled source.
        search_path: folders in which the training process finds modules.
    """

    nbytes: int
    search_path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leave:
    """The loader no longer needs workers. When the last loader leaves, the process ends."""


@dataclass(frozen=True, slots=True)
class Left:
    """The answer to ``Leave``; the last loader may wait for the end of the process."""

    was_last: bool


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """The process has joined the cluster at ``address``, or has ``started`` it.

    ``token`` is that of its workers.
    """

    address: str
    started: bool
    token: bytes = b""


@dataclass(frozen=True, slots=True)
class Refused:
    """The process cannot join a cluster, and the reason.

    With ``is_other_fleet`` it has, but has other workers than the loader had before.
    """

    reason: str
    is_other_fleet: bool = False


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers as they are now.

    Attributes:
        addresses: addresses of the workers that have answered.
        starting: number of workers that have not answered yet.
        only_here: whether the cluster has no CPUs but those of this machine.
        problem: the last problem; ``None`` if a worker has answered since.
        needs: for each loader its rank, and the workers that it needs, ``None`` for one on each
            free CPU; in order of their ranks.
        needed: that number of the loader to which this is sent.
    """

    addresses: tuple[Address, ...] = ()
    starting: int = 0
    only_here: bool = False
    problem: str | None = None
    needs: tuple[tuple[int, int | None], ...] = ()
    needed: int | None = None


FromLoader = Start | FleetLoad | Code | Leave
ToLoader = WorkerJoined | Refused | Workers | Left


def packed(message: FromLoader | ToLoader, *fds: int) -> FdMessage:
    return FdMessage({}, pickle.dumps(message), fds)


def unpacked(message: FdMessage) -> Any:
    """Returns what ``packed`` got; both ends run the same version, and are of the same user.

    A service that cannot accept a connection answers with fields alone, see ``LocalService``.
    """
    if not message.payload:
        return Refused(str(message.fields.get("refused")))
    return pickle.loads(message.payload)
