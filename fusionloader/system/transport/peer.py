"""A client's view of a server: it connects when needed, and pauses after failures."""

from __future__ import annotations

import time

from fusionloader.system.transport import connection
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.connection import Connection
from fusionloader.system.transport.errors import TransportError
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.messages import REFUSED, Message, Outgoing
from fusionloader.system.transport.patience import Absence, AnswerTimes

_CONNECT_SECONDS = 2.0
_LEAST_SECONDS = 0.5


class Peer:
    """A server at an address.

    Attributes:
        address: address of the server.
        warned: whether the client has warned of its absence; the client resets it.
    """

    def __init__(
        self,
        address: Address,
        identity: Identity,
        service: str,
        least: float | None = None,
        absence: float = 1.0,
    ) -> None:
        """Connects only with the first message.

        Args:
            address: address of the server.
            identity: identity that both ends share.
            service: name of the service, with its version.
            least: least timeout of an answer in seconds, 0.5 by default.
            absence: pause after the first failure, in seconds.
        """
        self.address = address
        self.warned = False
        self._identity = identity
        self._service = service
        self._connection: Connection | None = None
        self._times = AnswerTimes(_LEAST_SECONDS if least is None else least)
        self._absence = Absence(absence)
        self._asked = 0.0

    @property
    def deadline(self) -> float:
        """Timeout of an answer in seconds."""
        return self._times.deadline

    def may_be_asked(self) -> bool:
        """Whether it is not in a pause after a failure."""
        return self._absence.is_over(time.monotonic())

    def fileno(self) -> int:
        """Returns the descriptor, which is readable when an answer begins.

        Raises:
            ValueError: it is not connected.
        """
        if self._connection is None:
            raise ValueError(f"{self.address} is not connected")
        return self._connection.fileno()

    def send(self, message: Outgoing) -> None:
        """Sends a message, and connects before if needed.

        Raises:
            TransportError: the server is gone.
        """
        if self._connection is None:
            self._connection = connection.connect(
                self.address, self._identity, self._service, _CONNECT_SECONDS
            )
        self._asked = time.monotonic()
        self._connection.send(message, self.deadline)

    def receive(self) -> Message:
        """Returns the answer to the last message. Its body is valid until the next answer.

        Raises:
            TransportError: the server is gone, or refuses the request.
        """
        if self._connection is None:
            raise TransportError("has closed the connection")
        message = self._connection.receive(self.deadline, self.deadline)
        if message.kind == REFUSED:
            raise TransportError(message.head.decode(errors="replace")[:500])
        self._times.add(time.monotonic() - self._asked)
        self._absence.answered()
        return message

    def failed(self) -> float:
        """Closes the connection and begins a pause; returns its seconds."""
        self.close()
        return self._absence.failed(time.monotonic())

    def close(self) -> None:
        """Ends the connection. The next ``send`` makes another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
