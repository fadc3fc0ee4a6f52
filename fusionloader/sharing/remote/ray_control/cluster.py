"""Joining a Ray cluster."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from fusionloader.sharing.remote.ray_control.messages import Start, WorkerJoined
from fusionloader.system.transport.address import Address

_PROBE_SECONDS = 3.0
# What a client of gRPC sends first, and what its server answers at once: HTTP/2's preface with
# empty settings, and settings.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_FRAME_BYTES, _KIND_AT, _SETTINGS = 9, 3, 4
_OBJECT_STORE_BYTES = 80 << 20  # next to Ray's least: samples do not pass through it
_LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def probe(address: str) -> None:
    """Checks whether a cluster may be at an address, because Ray would wait for minutes.

    Raises:
        ConnectionError: nothing listens there, or something else does.
        ValueError: the address is invalid.
    """
    if address in ("auto", "local"):
        return
    host, port = Address.parse(address.removeprefix("ray://"))
    try:
        with socket.create_connection((host, port), _PROBE_SECONDS) as candidate:
            speaks = os.environ.get("RAY_USE_TLS") == "1" or _speaks_grpc(candidate)
    except OSError as error:
        raise ConnectionError(
            f"no Ray cluster answers at {address} ({error.strerror or error}): start one with "
            "`ray start --head`, or correct Remote(address=...)"
        ) from None
    if not speaks:
        raise ConnectionError(
            f"what listens at {address} is no Ray cluster: correct Remote(address=...)"
        )


def _speaks_grpc(candidate: socket.socket) -> bool:
    candidate.sendall(_PREFACE)
    try:
        frame = candidate.recv(_FRAME_BYTES, socket.MSG_WAITALL)
    except OSError:  # it sends nothing in time, or closes the connection
        return False
    return len(frame) == _FRAME_BYTES and frame[_KIND_AT] == _SETTINGS


def join(start: Start) -> WorkerJoined:
    """Joins a cluster, or starts one; this process is its driver from then on.

    Raises:
        ConnectionError: there is none, or it has other versions of Ray or Python.
    """
    if start.address not in ("auto", "local"):
        _use_loopback(start.address)
    import ray  # only now: it reads the environment

    address = start.address
    common = {"log_to_driver": False, "logging_level": "ERROR", "runtime_env": start.runtime_env}
    with _as_connection_errors(address):
        if address not in ("auto", "local"):
            node_ip = start.node_ip or _loopback(address)
            options = {} if node_ip is None else {"_node_ip_address": node_ip}
            ray.init(address=address, **common, **options)
            return WorkerJoined(address, started=False)
        if address == "auto":
            try:
                ray.init(address="auto", **common)
                return WorkerJoined(ray.get_runtime_context().gcs_address, started=False)
            except ConnectionError:  # none runs on this machine
                pass
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # the user has not agreed to them
        ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            **common,
        )
        return WorkerJoined(ray.get_runtime_context().gcs_address, started=True)


@contextmanager
def _as_connection_errors(address: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        found = " ".join(line.strip() for line in lines)[:500]
        raise ConnectionError(f"the Ray cluster ({address}) cannot be joined: {found}") from error


def _loopback(address: str) -> str | None:
    """Returns the address's host if it is an IP address of the loopback network.

    All nodes of such a cluster are on this machine. Ray would look for this machine's node under
    the address of its network card.
    """
    host = Address.parse(address.removeprefix("ray://")).host
    try:
        return host if ipaddress.ip_address(host).is_loopback else None
    except ValueError:
        return None


def _use_loopback(address: str) -> None:
    """Keeps Ray from replacing ``localhost`` by the address of the network card.

    Ray does so because other machines could not join a head that is known as ``localhost``. But a
    head that was started on ``127.0.0.1`` does not listen at the other address.
    """
    host, port = Address.parse(address.removeprefix("ray://"))
    if host not in ("localhost", "127.0.0.1", "::1"):
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outwards:
        try:
            outwards.connect(("192.0.2.1", 9))  # an address for examples; nothing is sent
            socket.create_connection((outwards.getsockname()[0], port), _PROBE_SECONDS).close()
        except OSError:
            os.environ[_LOOPBACK_ONLY] = "0"
