"""Addresses of servers, written as ``host:port``."""

from __future__ import annotations

import ipaddress
import socket
from typing import NamedTuple


class Address(NamedTuple):
    """Host and port of a server. Port 0 means any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parses ``"host:port"`` or ``"[::1]:port"``.

        Raises:
            ValueError: the text is no address.
        """
        host, colon, port = text.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not (host and colon and port.isascii() and port.isdigit() and int(port) < 1 << 16):
            raise ValueError(f'an address is written as "host:port", not {text!r}')
        return cls(host, int(port))

    def to_listen(self) -> Address:
        """Returns the address to listen at: for a name, which may be a loopback one here, all."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return Address("0.0.0.0", self.port)  # noqa: S104 - clients must show the token
        return self

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_loopback(connection: socket.socket) -> bool:
    """Whether both ends of a connection are loopback addresses of this machine."""
    ends = (connection.getsockname(), connection.getpeername())
    return all(ipaddress.ip_address(end[0].partition("%")[0]).is_loopback for end in ends)


def is_own(host: str) -> bool:
    """Whether a host's name or number is this machine's.

    Raises:
        ValueError: the name cannot be resolved.
    """
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"the host {host!r} is not known here ({error})") from None
    return any(_can_bind(family, where) for family, _, _, _, where in found)


def _can_bind(family: int, where: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as candidate:
            candidate.bind(where)
    except OSError:
        return False
    return True
