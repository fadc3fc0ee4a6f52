"""Remote workers that Ray places, starts, watches and ends."""

from __future__ import annotations

import hashlib
import logging
import secrets
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import fusionloader
from fusionloader.options.remote_settings import Remote
from fusionloader.sharing.ranks.discovery import JobRanks
from fusionloader.sharing.remote.fleet import Fleet, FleetLoad, FleetState
from fusionloader.sharing.remote.ray_control import cluster
from fusionloader.sharing.remote.ray_control.connection import RayConnection
from fusionloader.sharing.remote.ray_control.messages import Refused, Start, WorkerJoined, Workers
from fusionloader.sharing.remote.user_code.bundle import CodeBundle, need_ray
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.patience import Absence

log = logging.getLogger("fusionloader.remote")

_FIRST_RETRY_SECONDS = 2.0
_START_SECONDS = 20.0  # for an interpreter to start on a busy machine
_ENDING_PROCESSES = 3  # that a loader may meet before it is told why there are no workers


class RayFleet(Fleet):
    """Workers of a Ray cluster, one core each.

    They are started on machines other than this one. If the cluster has only this machine and their
    number is not given, they take the free CPUs that the loader's own processes leave.

    A process of its own talks to Ray, see ``fusionloader.sharing.remote.ray_control``. All ranks of
    a job on this machine use the same process, and so the same workers, if they mean the same
    cluster.

    Attributes:
        identity: credentials for connections to the workers, made from a random token.
    """

    def __init__(
        self, settings: Remote, loader_cores: int = 1, ranks: JobRanks | None = None
    ) -> None:
        """Joins the cluster and starts the first workers, without waiting for them.

        Args:
            settings: settings with ``servers=None``.
            loader_cores: cores of this machine that training and the loader's own workers use.
            ranks: the ranks to share workers with; ``None`` for workers of this loader alone.

        Raises:
            ImportError: Ray is not installed.
            ConnectionError: there is no cluster at the address, or it cannot be joined.
            ValueError: the address is invalid, or is of Ray's client while ``workers`` is not
                given.
        """
        need_ray()
        start = _start(settings, loader_cores, ranks)
        cluster.probe(start.address)
        self._start = start
        # Workers have room for the user code of one loader.
        self._ranks = None if settings.user_code else ranks
        self._why_alone = "" if ranks is None else "with user code each rank has its own"
        self._socket = _own_socket() if self._ranks is None else _shared_socket(start, self._ranks)
        self._code: CodeBundle | None = None
        self._workers = Workers()
        self._gone: str | None = None
        self._warned: set[str] = set()
        self._logged_only_here = False
        self._closing = threading.Event()
        joined = self._join(settings.join_seconds)
        self.identity = Identity.of(joined.token)
        self._start = replace(start, token=joined.token)
        if joined.started:
            log.info("no Ray cluster runs on this machine: started one here")
        else:  # the cluster to join again if the connection is lost
            self._start = replace(self._start, address=joined.address)
        self._name = f"the Ray cluster at {joined.address}"
        self._thread = threading.Thread(target=self._listen, name="ray fleet", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # the thread may run, and would use the workers forever
            self._closing.set()
            self._control.close()
            raise

    def _join(self, seconds: float) -> WorkerJoined:
        deadline = time.monotonic() + seconds
        for _ in range(_ENDING_PROCESSES if self._ranks else 1):
            try:
                self._control = self._connect(deadline)
                try:
                    joined = self._control.joined(deadline)
                except BaseException:
                    self._control.close()
                    raise
            except TimeoutError:
                raise ConnectionError(
                    f"a Ray cluster could not be joined or started within {seconds:g} s: see `ray "
                    "status`, and whether `ray start --address=...` was run on this machine. A "
                    "busy machine may need Remote(join_seconds=...)"
                ) from None
            except ConnectionError:
                raise
            except OSError as error:
                text = f"the process that talks to Ray cannot be started: {error}"
                raise ConnectionError(text) from error
            if joined is not None:
                return joined
            self._control.close()  # maybe its last loader has left
        raise ConnectionError(self._control.last_error())

    def _connect(self, deadline: float) -> RayConnection:
        return RayConnection(self._socket, self._start, deadline, is_alone=self._ranks is None)

    def addresses(self) -> Sequence[Address]:
        """Returns the workers that have answered, as of the last message.

        Each rank begins with other ones, because a loader can use no more than ``LANES``.
        """
        found, ranks = self._workers.addresses, self._ranks
        first = 0 if ranks is None else len(found) * ranks.rank // ranks.count
        return found[first:] + found[:first]

    def state(self) -> FleetState:
        """Returns the number of workers, and what loaders need, as of the last message."""
        workers = self._workers
        ranks = len({rank for rank, _ in workers.needs})
        return FleetState(len(workers.addresses), workers.needed, max(ranks, 1))

    def report_load(self, load: FleetLoad) -> None:
        """Changes the number of workers, if a range was given for it, or that of other ranks.

        What this rank uses of the workers is not there for others, also if its number is fixed.
        """
        limits = self._start.workers
        if limits is not None and (limits[0] < limits[1] or self._ranks is not None):
            self._control.send(load, must_arrive=False)

    def bring(self, code: CodeBundle) -> None:
        """Has Ray bring user code to all workers, also to those that start later."""
        if code != self._code:
            before, self._code = self._code, code  # first: the thread may be about to connect again
            try:
                self._control.send_code(code)
            except BaseException:
                self._code = before
                raise

    def explain(self) -> str:
        """Returns the number of workers, the cluster, who shares them, and the last problem."""
        workers, ranks = self._workers, self._ranks
        parts = [f"{len(workers.addresses)} remote workers on {self._name}"]
        if workers.only_here:
            parts.append("which has only this machine")
        if ranks is not None:
            there, count = self.state().ranks, ranks.count
            parts.append(f"shared by {there} of {count} ranks")
            if there < count:
                parts.append(
                    "the others use none, or another cluster, or differ in giving `workers`"
                )
        elif self._why_alone:
            parts.append(f"not shared with other ranks: {self._why_alone}")
        if workers.needed is not None and ranks is not None:
            parts.append(f"this rank needs {workers.needed}")
        if workers.starting:
            parts.append(f"{workers.starting} more are being started")
        if self._gone is not None:
            parts.append(self._gone)
        elif workers.problem is not None:
            parts.append(workers.problem)
        return "; ".join(parts)

    def close(self) -> None:
        """Ends the workers, and the cluster if it was started from here.

        If other ranks use them, it is the last of these that ends them.
        """
        self._closing.set()
        control = self._control
        control.leave(self._thread)
        if self._control is not control:  # the thread has connected again meanwhile
            self._control.leave()
        self.identity.close()

    def _listen(self) -> None:
        """Receives the workers' state, and replaces the control process; runs in a thread."""
        absence = Absence(_FIRST_RETRY_SECONDS)
        while not self._closing.is_set():
            message = self._control.receive()
            if isinstance(message, Workers):
                self._update(message)
            elif isinstance(message, WorkerJoined):
                log.info("%s is back", self._name)
                self._gone = None
                absence.answered()
            elif not self._closing.is_set():
                self._lost(message, absence)

    def _update(self, workers: Workers) -> None:
        before, self._workers = self._workers, workers
        self._start = replace(self._start, needed=workers.needed)
        if workers.needs != before.needs:
            self._log_needs(before)
        if workers.problem is not None and workers.problem not in self._warned:
            self._warned.add(workers.problem)
            log.warning("remote workers on Ray: %s", workers.problem)
        if workers.only_here and self._start.workers is None and not self._logged_only_here:
            self._logged_only_here = True
            log.info(
                "%s has only this machine: its free CPUs but %d are remote workers",
                self._name,
                self._start.loader_cores,
            )

    def _log_needs(self, before: Workers) -> None:
        there = len(self._workers.addresses)
        for rank, needed in self._workers.needs:
            if (rank, needed) not in before.needs:
                needs = "all remote workers" if needed is None else f"{needed} remote workers"
                who = "this loader" if self._ranks is None else f"rank {rank}"
                log.debug("%s needs %s, the fleet has %d", who, needs, there)
        for rank in sorted({rank for rank, _ in before.needs}):
            if rank not in {rank for rank, _ in self._workers.needs}:
                log.debug("rank %d needs no remote workers, the fleet has %d", rank, there)

    def _lost(self, refused: Refused | None, absence: Absence) -> None:
        """Waits for a while, and tries to join again."""
        reason = self._control.last_error() if refused is None else refused.reason
        if self._gone is None:
            self._gone = "Ray is gone, and those that still answer are used"
            log.warning("%s is gone (%s); training continues without it", self._name, reason)
        else:
            log.debug("%s: %s", self._name, reason)
        self._control.close()
        if refused is not None and refused.is_other_fleet:
            self._ranks, self._why_alone, self._socket = None, reason, _own_socket()
        while not self._closing.wait(absence.failed(0.0)):
            try:
                cluster.probe(self._start.address)
                self._control = self._connect(time.monotonic() + _START_SECONDS)
                if self._code is not None:
                    self._control.send_code(self._code)
                return
            except OSError as error:
                log.debug("%s: %s", self._name, error)
                self._control.close()


def _own_socket() -> str:
    return f"fusionloader-ray-{secrets.token_hex(16)}"


def _shared_socket(start: Start, ranks: JobRanks) -> str:
    """Returns the name for ranks that use the same cluster in the same way."""
    same = (
        ranks.address,
        start.version,
        start.address,
        start.node_ip,
        repr(start.runtime_env),
        start.workers is None,
    )
    return f"fusionloader-ray-{hashlib.sha256(repr(same).encode()).hexdigest()[:32]}"


def _start(settings: Remote, loader_cores: int, ranks: JobRanks | None) -> Start:
    given = settings.workers
    address = settings.cluster_address or "auto"
    if address.startswith("ray://") and given is None:
        raise ValueError("Ray's client does not tell what is free: give Remote(workers=...)")
    start = Start(
        token=None,
        version=fusionloader.__version__,
        address=address,
        node_ip=None,
        runtime_env=None,
        workers=(given, given) if isinstance(given, int) else given,
        loader_cores=loader_cores * (1 if ranks is None else ranks.count),
        join_seconds=settings.join_seconds,
        rank=0 if ranks is None else ranks.rank,
    )
    ray = sys.modules.get("ray")  # a process that has joined a cluster has imported it
    return start if ray is None or not ray.is_initialized() else _for_session(start, settings, ray)


def _for_session(start: Start, settings: Remote, ray: Any) -> Start:
    """Returns ``start`` for the cluster that this process has already joined."""
    if ray.util.client.ray.is_connected():
        if settings.address is None:
            raise ConnectionError(
                "this process uses Ray's client: give the same Remote(address='ray://host:port')"
            )
        return start
    context = ray.get_runtime_context()
    found = context.gcs_address
    if settings.address not in (None, "auto") and not _same(settings.address, found):
        raise ConnectionError(
            f"this process is part of the Ray cluster at {found}, not of {settings.address}: leave "
            "out Remote(address=...), or call ray.shutdown() before"
        )
    environment = context.runtime_env
    return replace(
        start,
        address=found,
        node_ip=ray.util.get_node_ip_address(),
        runtime_env=dict(environment) if environment else None,
    )


def _same(one: str, other: str) -> bool:
    first, second = Address.parse(one.removeprefix("ray://")), Address.parse(other)
    try:
        hosts = {socket.gethostbyname(host) for host in (first.host, second.host)}
    except OSError:
        return False
    return first.port == second.port and len(hosts) == 1
