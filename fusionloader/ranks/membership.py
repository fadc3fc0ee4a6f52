"""A rank's side of the global manager: finds it, starts it, tells it of a loader's queue."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import secrets
import socket
import time
from dataclasses import dataclass

from fusionloader.ranks.discovery import Ranks
from fusionloader.ranks.global_manager import GlobalManagerConfig
from fusionloader.workers import fd_messages
from fusionloader.workers.processes import BareProcess

log = logging.getLogger("fusionloader.ranks")

GUEST_SLOTS = 64  # workers of other ranks that may work on a queue at the same time
_LOOK_SECONDS = 0.05
_PATIENCE_SECONDS = 0.2
_TURN_SECONDS = 0.3  # the first rank starts the manager; another one only if that does not come
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0

_loaders = itertools.count()
_said: set[str] = set()
_started: list[BareProcess] = []  # held until they have ended, so that they are no zombies


def next_loader() -> int:
    """Returns the number of a loader in this process; the same in every rank of a script."""
    return next(_loaders)


@dataclass(frozen=True, slots=True)
class SharingOffer:
    """What others need in order to work for a loader, and who may.

    ``pickled_plan`` is the pickled plan, ``kind`` says by parts what has to be equal.
    """

    ranks: Ranks
    loader: int
    kind: dict[str, str]
    pickled_plan: bytes
    table_fd: int
    table_bytes: int


class Membership:
    """One queue's place with the global manager; never waits for it longer than a moment.

    Attributes:
        event_fd: through which workers and the local manager wake it.
        address: where it listens.
    """

    def __init__(self, sharing_offer: SharingOffer) -> None:
        self._sharing_offer = sharing_offer
        self.address = sharing_offer.ranks.address
        self.event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._fds: tuple[int, ...] = ()
        self._connection: socket.socket | None = None
        self._refused = False
        self._looked = 0.0
        self._missing_since: float | None = None
        self._start_after = 0.0
        self._pause = _FIRST_PAUSE

    def join(self, control_fd: int, data_fd: int) -> None:
        """Offers the queue, now or as soon as there is a manager."""
        self._fds = (control_fd, data_fd, self._sharing_offer.table_fd, self.event_fd)
        self.look()

    def look(self) -> None:
        """Notices that the manager has died, or is there at last; costs nothing in between."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS or self._refused:
            return
        self._looked = now
        _started[:] = [process for process in _started if process.is_alive()]
        if self._connection is not None:
            self._hear(self._connection)
            return
        self._connection = self._offer()
        if self._connection is None:
            self._start_manager(now)
        else:
            self._missing_since, self._pause = None, _FIRST_PAUSE

    def _offer(self) -> socket.socket | None:
        connection = fd_messages.connect(self.address, _PATIENCE_SECONDS)
        if connection is None:
            return None
        sharing_offer = self._sharing_offer
        fields = {
            "do": "join",
            "version": fd_messages.package_version(),
            "member": secrets.randbelow(0xFFFF) + 1,
            "rank": sharing_offer.ranks.rank,
            "ranks": sharing_offer.ranks.count,
            "loader": sharing_offer.loader,
            "kind": sharing_offer.kind,
            "table_bytes": sharing_offer.table_bytes,
        }
        try:
            fd_messages.send(
                connection, fd_messages.Message(fields, sharing_offer.pickled_plan, self._fds)
            )
        except OSError:
            connection.close()
            return None
        connection.setblocking(False)
        return connection

    def _hear(self, connection: socket.socket) -> None:
        try:
            message = fd_messages.receive(connection)
        except BlockingIOError:
            return
        if message is None:
            self._disconnect()
            return
        message.close()
        why = message.fields.get("refused")
        if why == "taken":  # the name, by chance: the next offer has another one
            self._disconnect()
        elif why:
            self._refused = True
            self._disconnect()
            _say(f"this rank neither lends nor borrows workers: {why}")
        elif note := message.fields.get("note"):
            _say(str(note))

    def _start_manager(self, now: float) -> None:
        if self._missing_since is None:
            self._missing_since = now
        turn = self._missing_since + self._sharing_offer.ranks.rank * _TURN_SECONDS
        if _started or now < max(turn, self._start_after):
            return  # one that is alive will answer, or another one has the address already
        self._start_after = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        config = GlobalManagerConfig(self.address, self._sharing_offer.ranks.count)
        try:
            module = "fusionloader.ranks.global_manager"
            _started.append(BareProcess(module, config, (), apart=True))
        except OSError as error:
            _say(f"the global manager cannot be started: {error}")

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Takes the queue out; workers of others that are at it let go of it by themselves."""
        if self._connection is not None:
            # Forked workers hold the connection too: closing it would not end it.
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        self._disconnect()
        self._refused = True
        if self.event_fd >= 0:
            os.close(self.event_fd)
            self.event_fd = -1


def _say(text: str) -> None:
    if text not in _said:
        _said.add(text)
        log.warning("%s", text)
