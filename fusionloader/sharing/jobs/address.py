"""The socket at which the jobs of a group meet, and the start of its coordinator."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from dataclasses import dataclass

from fusionloader.system.local_service import ServiceStarter

_PATIENCE_SECONDS = 20.0  # for an interpreter to start on a busy machine
_TIMEOUT_SECONDS = 10.0
_GIVEN_UP_SECONDS = 60.0

_given_up: dict[str, tuple[float, str]] = {}  # by address: time of the next try, last error


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """Configuration of a coordinator: the name of the socket that it listens on."""

    address: str


def coordinator_address(word: str) -> str:
    """Returns the socket's name for a word, in Linux's abstract namespace.

    Each rank of a training has its own part of the samples, so rank n of one training shares with
    rank n of another.
    """
    namespaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "mnt")]
    rank = f"rank {os.environ.get('RANK', '0')} of {os.environ.get('WORLD_SIZE', '1')}"
    identity = "\0".join([str(os.geteuid()), *namespaces, rank, word])
    return f"fusionloader-share-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"


def connect(address: str) -> socket.socket:
    """Connects to the coordinator, which is started if none listens.

    Raises:
        OSError: the coordinator does not start, or did not start within the last minute, or
            another user has bound its address.
    """
    until, why = _given_up.get(address, (0.0, ""))
    if time.monotonic() < until:
        raise OSError(why)
    try:
        return _connect(address)
    except OSError as error:
        _given_up[address] = (time.monotonic() + _GIVEN_UP_SECONDS, str(error))
        raise


def _connect(address: str) -> socket.socket:
    starter = ServiceStarter("fusionloader.sharing.jobs.coordinator", CoordinatorConfig(address))
    deadline = time.monotonic() + _PATIENCE_SECONDS
    connection = starter.connect(address, _TIMEOUT_SECONDS, deadline)
    if connection is None:
        raise OSError("the coordinator of shared preparation does not start")
    return connection
