"""The connection of a queue to the global manager, which is found or started."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import time

from fusionloader.sharing.ranks.discovery import JobRanks
from fusionloader.sharing.ranks.global_manager import GlobalManagerConfig
from fusionloader.sharing.ranks.sharing_offer import SharingOffer
from fusionloader.system import fd_messages
from fusionloader.system.fd_messages import FdMessage
from fusionloader.system.local_service import ServiceStarter, reap_ended
from fusionloader.system.shm.descriptor import OwnedDescriptor

log = logging.getLogger("fusionloader.ranks")

GUEST_SLOTS = 64  # workers of other ranks that may work on a queue at the same time
_POLL_SECONDS = 0.05
_TIMEOUT_SECONDS = 0.2
_STAGGER_SECONDS = 0.3  # rank n starts the manager only if there is none after n times this
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0

_said: set[str] = set()
_starters: dict[GlobalManagerConfig, ServiceStarter] = {}  # for all loaders of this process


class _Event(OwnedDescriptor):
    """An eventfd that is closed with this object, even if its manager cannot be made."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


class Membership:
    """One queue's connection to the global manager; blocks on it for a moment at most."""

    def __init__(self, ranks: JobRanks, loader: int) -> None:
        """``loader`` is the loader's number, see ``SharingOffers``."""
        self._ranks, self._loader = ranks, loader
        self._offered: SharingOffer | None = None
        self._event = _Event()
        self._fds: tuple[int, ...] = ()
        self._connection: socket.socket | None = None
        self._refused = False
        self._polled = 0.0
        self._missing_since: float | None = None
        self._start_after = 0.0
        self._joined = -_LONGEST_PAUSE
        self._pause = _FIRST_PAUSE

    @property
    def event_fd(self) -> int:
        """Eventfd by which workers and the local manager wake the global manager."""
        return self._event.fd

    def join(self, sharing_offer: SharingOffer, control_fd: int, data_fd: int) -> None:
        """Offers the queue to the global manager, now or as soon as there is one."""
        table = () if sharing_offer.table_fd < 0 else (sharing_offer.table_fd,)
        self._fds = (self.event_fd, control_fd, data_fd, *table)
        self._offered = sharing_offer
        self.poll()

    def poll(self) -> None:
        """Reads the manager's messages, reconnects if it has died; at most every 0.05 s."""
        now = time.monotonic()
        offered = self._offered
        if now - self._polled < _POLL_SECONDS or self._refused or offered is None:
            return
        self._polled = now
        reap_ended()
        if self._connection is not None:
            while self._connection is not None and self._receive(self._connection):
                pass
            return
        self._connection = self._offer(offered)
        if self._connection is None:
            self._start_manager(now)
        else:
            self._missing_since, self._joined = None, now

    def _offer(self, sharing_offer: SharingOffer) -> socket.socket | None:
        connection = fd_messages.connect(self._ranks.address, _TIMEOUT_SECONDS)
        if connection is None:
            return None
        fields = {
            "do": "join",
            "version": fd_messages.package_version(),
            "member": secrets.randbelow(0xFFFF) + 1,
            "rank": self._ranks.rank,
            "ranks": self._ranks.count,
            "loader": self._loader,
            "kind": sharing_offer.kind,
            "table_bytes": sharing_offer.table_bytes,
            "is_told_of_moves": log.isEnabledFor(logging.DEBUG),
        }
        try:
            fd_messages.send(connection, FdMessage(fields, sharing_offer.pickled_plan, self._fds))
        except OSError:
            connection.close()
            return None
        connection.setblocking(False)
        return connection

    def _receive(self, connection: socket.socket) -> bool:
        """Handles a message; returns whether there was one."""
        try:
            message = fd_messages.receive(connection)
        except BlockingIOError:
            return False
        if message is None:
            self._disconnect()
            return False
        message.close()
        why = message.fields.get("refused")
        if why == "taken":  # the random member number collides: the next offer draws another
            self._disconnect()
        elif why:
            self._refused = True
            self._disconnect()
            _say_once(f"this rank shares no workers: {why}")
        elif note := message.fields.get("note"):
            # It is usual that ranks have a part of the samples each, in a dataset of user code.
            is_code = self._offered is not None and not self._offered.pickled_plan
            _say_once(str(note), logging.INFO if is_code else logging.WARNING)
        elif moved := message.fields.get("moved"):
            log.debug("%s", moved)
        return True

    def _start_manager(self, now: float) -> None:
        if self._missing_since is None:
            self._missing_since = now
            if now - self._joined > _LONGEST_PAUSE:  # otherwise it may end at each connection
                self._pause = _FIRST_PAUSE
        earliest = self._missing_since + self._ranks.rank * _STAGGER_SECONDS
        config = GlobalManagerConfig(self._ranks.address, self._ranks.count)
        last = _starters.get(config)
        if (last and last.is_under_way()) or now < max(earliest, self._start_after):
            return  # the one started will listen, or another process has the address already
        self._start_after = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        starter = _starters[config] = ServiceStarter(
            "fusionloader.sharing.ranks.global_manager", config
        )
        try:
            starter.start()
        except OSError as error:
            _say_once(f"the global manager cannot be started: {error}")

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Withdraws the queue; borrowed workers detach and unmap when they see it stopped."""
        if self._connection is not None:
            # Forked workers have the connection open too: closing it here would not end it.
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        self._disconnect()
        self._refused = True
        self._event.close()


def _say_once(text: str, level: int = logging.WARNING) -> None:
    if text not in _said:
        _said.add(text)
        log.log(level, "%s", text)
