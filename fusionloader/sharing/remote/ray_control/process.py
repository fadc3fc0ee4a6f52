"""The main program of the process that talks to Ray, which a ``RayFleet`` starts."""

from __future__ import annotations

import math
import mmap
import os
import signal
import socket
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fusionloader.scheduler.fleet_size import FleetSize, SharedFleetSize
from fusionloader.sharing.remote.fleet import FleetLoad
from fusionloader.sharing.remote.ray_control import cluster
from fusionloader.sharing.remote.ray_control.messages import (
    Code,
    Leave,
    Left,
    Refused,
    Start,
    ToLoader,
    WorkerJoined,
    Workers,
    packed,
    unpacked,
)
from fusionloader.sharing.remote.user_code.bundle import CodeBundle
from fusionloader.system import fd_messages
from fusionloader.system.fd_messages import FdMessage
from fusionloader.system.limits import anonymous_memory
from fusionloader.system.local_service import LocalPeer, LocalService
from fusionloader.system.transport.identity import draw_token

if TYPE_CHECKING:  # imports Ray, which reads the environment
    from fusionloader.sharing.remote.ray_control.workers import RayWorkers

_PERIOD_SECONDS = 0.1
_SPARE_SECONDS = 10  # after which a process that cannot join ends, when no loader waits any more
_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class RayControlConfig:
    """The socket's name to listen on, and the first message of the loader that starts it."""

    address: str
    start: Start


def main(config: RayControlConfig) -> None:
    """Serves until no loader is left; returns at once if another process has the address."""
    errors = anonymous_memory.create("ray-errors", 0, grows=True)
    os.dup2(errors, 2)  # before it listens: loaders read the errors when they have connected
    os.close(errors)
    listener = fd_messages.listen(config.address, _BACKLOG)
    if listener is None:
        return
    start = config.start
    if start.token is None:
        start = replace(start, token=draw_token())
    signal.alarm(math.ceil(start.join_seconds) + _SPARE_SECONDS)
    try:
        joined: WorkerJoined | Refused = cluster.join(start)
    except ConnectionError as error:
        joined = Refused(str(error))
    signal.alarm(0)
    if isinstance(joined, Refused):
        RefusingService(listener, joined).serve()
        return
    import ray

    from fusionloader.sharing.remote.ray_control.workers import RayWorkers

    workers = RayWorkers(start)
    try:
        RayService(listener, start, joined, workers).serve()
        workers.close()
    finally:
        ray.shutdown()  # the socket's name stays taken: a cluster that was started here ends first


class RefusingService(LocalService[LocalPeer]):
    """Tells the loaders that wait for a cluster why there is none."""

    name = "the process that talks to Ray"
    first_seconds = last_seconds = 0.5

    def __init__(self, listener: socket.socket, refused: Refused) -> None:
        super().__init__(listener, LocalPeer)
        self._refused = refused

    def handle(self, peer: LocalPeer, message: FdMessage) -> bool:
        peer.reply({}, packed(self._refused).payload)
        return False


@dataclass(slots=True, eq=False)
class FleetMember(LocalPeer):
    """A loader that uses the workers, as soon as it has sent its ``start``.

    Attributes:
        start: its first message.
        sent: the last message to it.
    """

    start: Start | None = None
    sent: Workers | None = None

    def send(self, message: ToLoader) -> bool:
        return self.reply({}, packed(message).payload)


class RayService(LocalService[FleetMember]):
    """Starts as many workers as the loaders of all ranks need, and tells each of them where."""

    name = "the process that talks to Ray"
    first_seconds, last_seconds = 2.0, 0.0

    def __init__(
        self, listener: socket.socket, start: Start, joined: WorkerJoined, workers: RayWorkers
    ) -> None:
        super().__init__(listener, FleetMember)
        assert start.token is not None
        self._token = start.token
        self._joined = replace(joined, token=start.token)
        self._workers = workers
        self._size: SharedFleetSize[FleetMember] = SharedFleetSize()
        self._next_step = 0.0

    def handle(self, peer: FleetMember, message: FdMessage) -> bool:
        content = unpacked(message)
        if isinstance(content, Start):
            return self._join(peer, content)
        if isinstance(content, FleetLoad):
            there = len(self._workers.state().addresses)
            shares = content.busy_share, content.wait_share, there, content.remote_share
            self._size.observe(peer, time.monotonic(), *shares)
        elif isinstance(content, Code):
            with mmap.mmap(message.fds[0], content.nbytes, prot=mmap.PROT_READ) as memory:
                self._workers.bring(CodeBundle(memory[:], content.search_path))
        else:
            assert isinstance(content, Leave)
            was_last = len(self.peers) == 1
            peer.send(Left(was_last))
            if was_last:  # it waits for the end, which no loader that comes now may put off
                self.end()
            return False
        return True

    def _join(self, peer: FleetMember, start: Start) -> bool:
        if start.token not in (None, self._token):
            peer.send(Refused("other ranks have workers with another token", is_other_fleet=True))
            return False
        peer.start = start
        if start.workers is not None:
            self._size.join(peer, FleetSize(*start.workers, start.needed), time.monotonic())
        return peer.send(self._joined)

    def left(self, peer: FleetMember) -> None:
        self._size.leave(peer, time.monotonic())

    def advance(self) -> float | None:
        """Starts and ends workers every 0.1 s, however many messages come.

        So Ray has as little to answer for many loaders as for one, and a worker that should end
        drains only after its loaders have been told.
        """
        now = time.monotonic()
        if now < self._next_step:
            return self._next_step - now
        self._next_step = now + _PERIOD_SECONDS
        members = [peer for peer in self.peers if peer.start is not None]
        if members:
            all_free = any(peer.start.workers is None for peer in members if peer.start)
            self._workers.step(None if all_free else self._size.wish)
            self._publish(members)
        return _PERIOD_SECONDS

    def _publish(self, members: list[FleetMember]) -> None:
        state, needs = self._workers.state(), self._size.needs
        all_needs = sorted(
            ((peer.start.rank, needs.get(peer)) for peer in members if peer.start),
            key=lambda need: (need[0], need[1] or 0),
        )
        for peer in members:
            own = replace(state, needs=tuple(all_needs), needed=needs.get(peer))
            if own != peer.sent and peer.send(own):
                peer.sent = own
