"""Remote workers that Ray places, starts, watches and ends."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import fusionloader
from fusionloader.options.remote_settings import Remote
from fusionloader.scheduler.fleet_size import FleetSize
from fusionloader.sharing.remote.fleet import FleetLoad
from fusionloader.sharing.remote.ray_control import cluster
from fusionloader.sharing.remote.ray_control.messages import (
    Close,
    Refused,
    Start,
    Wish,
    WorkerJoined,
    Workers,
)
from fusionloader.sharing.remote.user_code.bundle import CodeBundle, need_ray
from fusionloader.system.finalizers import Finalizer
from fusionloader.system.limits import anonymous_memory
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity, draw_token
from fusionloader.system.transport.patience import Absence

log = logging.getLogger("fusionloader.remote")

_PLACE = re.compile(r"^\[.*?\] \S+:\d+: ")  # time and source line, which begin a line of Ray's log
_MOST_ERRORS = 1 << 14  # bytes of standard error that are read
_CLOSE_SECONDS = 5.0
_FIRST_RETRY_SECONDS = 2.0


class RayFleet:
    """Workers of a Ray cluster, one core each.

    They are started on machines other than this one. If the cluster has only this machine and their
    number is not given, they take the free CPUs that the loader's own processes leave.

    A process of its own talks to Ray, see ``fusionloader.sharing.remote.ray_control``.

    Attributes:
        identity: credentials for connections to the workers, made from a random token.
    """

    def __init__(self, settings: Remote, loader_cores: int = 1) -> None:
        """Joins the cluster and starts the first workers, without waiting for them.

        Args:
            settings: settings with ``servers=None``.
            loader_cores: cores of this machine that training and the loader's own workers use.

        Raises:
            ImportError: Ray is not installed.
            ConnectionError: there is no cluster at the address, or it cannot be joined.
            ValueError: the address is invalid, or is of Ray's client while ``workers`` is not
                given.
        """
        need_ray()
        start = _start(settings, loader_cores)
        cluster.probe(start.address)
        self.identity = Identity.of(start.token)
        self._start = start
        self._size = None
        if isinstance(settings.workers, tuple):
            self._size = FleetSize(*settings.workers)
        self._workers = Workers()
        self._gone: str | None = None
        self._warned: set[str] = set()
        self._logged_only_here = False
        self._closing = threading.Event()
        self._control = _Control(start)
        try:
            joined = self._control.joined(settings.join_seconds)
        except BaseException:
            self._control.close(0)
            raise
        if joined.started:
            log.info("no Ray cluster runs on this machine: started one here")
        else:  # the cluster to join again if the connection is lost
            self._start = replace(start, address=joined.address)
        self._name = f"the Ray cluster at {joined.address}"
        self._thread = threading.Thread(target=self._listen, name="ray fleet", daemon=True)
        self._thread.start()

    def addresses(self) -> Sequence[Address]:
        """Returns the workers that have answered, as of the last message."""
        return self._workers.addresses

    def report_load(self, load: FleetLoad) -> None:
        """Changes the number of workers, if a range was given for it."""
        if self._size is None:
            return
        there = len(self._workers.addresses)
        wish = self._size.observe(load.busy_share, load.wait_share, there, load.remote_share)
        if wish != self._start.wish:
            log.debug("%d remote workers are wanted", wish)
            self._start = replace(self._start, wish=wish)
            self._control.send(Wish(wish))

    def bring(self, code: CodeBundle) -> None:
        """Has Ray bring user code to all workers, also to those that start later."""
        if code != self._start.code:
            self._start = replace(self._start, code=code)
            self._control.send(code)

    def explain(self) -> str:
        """Returns the number of workers, the cluster, and the last problem."""
        workers = self._workers
        parts = [f"{len(workers.addresses)} remote workers on {self._name}"]
        if workers.starting:
            parts.append(f"{workers.starting} more are being started")
        if workers.only_here:
            parts.append("which has only this machine")
        if self._gone is not None:
            parts.append(self._gone)
        elif workers.problem is not None:
            parts.append(workers.problem)
        return "; ".join(parts)

    def close(self) -> None:
        """Ends the workers, and the cluster if it was started from here."""
        self._closing.set()
        self._control.close(_CLOSE_SECONDS)
        self._thread.join()
        self._control.close(_CLOSE_SECONDS)  # the thread may have started another one meanwhile
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
        self._workers = workers
        if workers.problem is not None and workers.problem not in self._warned:
            self._warned.add(workers.problem)
            log.warning("remote workers on Ray: %s", workers.problem)
        if workers.only_here and self._start.wish is None and not self._logged_only_here:
            self._logged_only_here = True
            log.info(
                "%s has only this machine: its free CPUs but %d are remote workers",
                self._name,
                self._start.loader_cores,
            )

    def _lost(self, refused: Refused | None, absence: Absence) -> None:
        """Waits for a while, and tries to join again."""
        reason = self._control.last_error() if refused is None else refused.reason
        if self._gone is None:
            self._gone = "Ray is gone, and those that still answer are used"
            log.warning("%s is gone (%s); training continues without it", self._name, reason)
        else:
            log.debug("%s: %s", self._name, reason)
        self._control.close(0)
        while not self._closing.wait(absence.failed(0.0)):
            try:
                cluster.probe(self._start.address)
            except ConnectionError:
                continue
            self._control = _Control(self._start)
            return


class _Control:
    """The process that talks to Ray, as training sees it."""

    def __init__(self, start: Start) -> None:
        ours, theirs = socket.socketpair()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            "from fusionloader.sharing.remote.ray_control.process import main; "
            f"main({theirs.fileno()})"
        )
        self._errors = anonymous_memory.create("ray-errors", 0, grows=True)
        Finalizer(self, os.close, self._errors)
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # not ended by the terminal: training ends it
        )
        theirs.close()
        self._connection = Connection(ours.detach())
        self._sending = threading.Lock()
        self.send(start)

    def joined(self, seconds: float) -> WorkerJoined:
        """Waits until the process has joined the cluster.

        Raises:
            ConnectionError: it cannot join, or did not within ``seconds``.
        """
        if not self._connection.poll(seconds):
            raise ConnectionError(
                f"a Ray cluster could not be joined or started within {seconds:g} s: see `ray "
                "status`, and whether `ray start --address=...` was run on this machine. A busy "
                "machine may need Remote(join_seconds=...)"
            )
        message = self.receive()
        if isinstance(message, WorkerJoined):
            return message
        raise ConnectionError(message.reason if isinstance(message, Refused) else self.last_error())

    def receive(self) -> Any:
        """Returns the next message, ``None`` when the process has ended."""
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            return None

    def send(self, message: Start | Wish | CodeBundle | Close) -> None:
        with self._sending, contextlib.suppress(OSError):  # it has ended, which `receive` shows
            self._connection.send(message)

    def last_error(self) -> str:
        """Returns the last line of its standard error, without the line of Ray's source."""
        tail = max(0, os.fstat(self._errors).st_size - _MOST_ERRORS)
        said = os.pread(self._errors, _MOST_ERRORS, tail)
        lines = said.decode(errors="replace").strip().splitlines()
        last = _PLACE.sub("", lines[-1]).strip() if lines else "its process has ended"
        return last.split(". ")[0][:300]

    def close(self, seconds: float) -> None:
        """Ends the process, after ``seconds`` by SIGTERM, at last by SIGKILL."""
        self.send(Close())
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            try:
                self._process.wait(_CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _start(settings: Remote, loader_cores: int) -> Start:
    wish = settings.workers[0] if isinstance(settings.workers, tuple) else settings.workers
    address = settings.cluster_address or "auto"
    if address.startswith("ray://") and wish is None:
        raise ValueError("Ray's client does not tell what is free: give Remote(workers=...)")
    start = Start(
        token=draw_token(),
        version=fusionloader.__version__,
        address=address,
        node_ip=None,
        runtime_env=None,
        wish=wish,
        loader_cores=loader_cores,
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
