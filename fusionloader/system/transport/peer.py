"""A server as one of its clients sees it: connected when needed, left alone while it is gone."""

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
    """A server at an address. After a ``TransportError`` it is gone for a while.

    Attributes:
        address: as it was given.
        warned: whether its absence has been told of; reset by an answer.
    """

    def __init__(
        self,
        address: Address,
        identity: Identity,
        service: str,
        least: float | None = None,
        absence: float = 1.0,
    ) -> None:
        """Does not connect yet.

        Args:
            address: where it listens.
            identity: what both ends have.
            service: what both ends are for, with its version.
            least: seconds that any answer is waited for; 0.5 unless given.
            absence: seconds for which it is left alone the first time that it fails.
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
        """Seconds that an answer is waited for."""
        return self._times.deadline

    def may_be_asked(self) -> bool:
        """Whether it is not taken as gone."""
        return self._absence.is_over(time.monotonic())

    def fileno(self) -> int:
        """Returns the descriptor that is readable when an answer begins.

        Raises:
            ValueError: it is not connected.
        """
        if self._connection is None:
            raise ValueError(f"{self.address} is not connected")
        return self._connection.fileno()

    def send(self, message: Outgoing) -> None:
        """Sends a message, connecting first where that is needed.

        Raises:
            TransportError: it is gone.
        """
        if self._connection is None:
            self._connection = connection.connect(
                self.address, self._identity, self._service, _CONNECT_SECONDS
            )
        self._asked = time.monotonic()
        self._connection.send(message, self.deadline)

    def receive(self) -> Message:
        """Returns the answer to what was sent last; its body is valid until the next one.

        Raises:
            TransportError: it is gone, or refuses to do what it was asked.
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
        """Leaves it alone for a while; returns the seconds."""
        self.close()
        return self._absence.failed(time.monotonic())

    def close(self) -> None:
        """Ends the connection; ``send`` makes another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
