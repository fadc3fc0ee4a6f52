"""The workers that loaders have on a Ray cluster: started, watched, replaced, ended."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray
from ray._private import state as ray_state  # no public API tells what is free on each node
from ray.exceptions import ActorUnavailableError

from fusionloader.sharing.remote.protocol import SERVICE
from fusionloader.sharing.remote.ray_control import messages
from fusionloader.sharing.remote.ray_control.actor import WorkerActor
from fusionloader.sharing.remote.user_code.bundle import CodeBundle
from fusionloader.system.transport import connection
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.patience import Absence

_DRAIN_SECONDS = 2.0
_REACH_SECONDS = 2.0
_REACHED_AT_ONCE = 8
_PLACED_SECONDS = 60.0  # for a worker on a CPU that was free
_SILENT_SECONDS = 30.0  # longer than Ray takes to see that a node is dead
_NODE_ID = "ray.io/node-id"


@dataclass(slots=True, eq=False)
class _Worker:
    """An actor.

    Attributes:
        actor: Ray's handle of the actor.
        call: the call under way: ``start``, then ``serve``, at last ``drain``.
        requested_at: when it was requested of Ray, in seconds of the monotonic clock.
        address: address at which it listens; ``None`` until it has started.
        node: Ray's id of its node; ``None`` until it has started.
        reached: the attempt to connect to it, while that is under way.
        admitted: whether the loader may use it.
        leaving: whether the loader should no longer use it.
        ends_at: when it is killed, drained or not.
    """

    actor: Any
    call: Any
    requested_at: float
    address: Address | None = None
    node: str | None = None
    reached: Future[None] | None = None
    admitted: bool = False
    leaving: bool = False
    ends_at: float | None = None


class RayWorkers:
    """Workers of the cluster that this process has joined. Not thread-safe."""

    def __init__(self, start: messages.Start) -> None:
        assert start.token is not None
        self._token, self._version = start.token, start.version
        self._loader_cores = start.loader_cores
        self._identity = Identity.of(start.token)
        self._own_node = ray.get_runtime_context().get_node_id()
        self._workers: list[_Worker] = []
        self._absence = Absence()
        self._pings = ThreadPoolExecutor(_REACHED_AT_ONCE, "ping")
        self._problem: str | None = None
        self._only_here = False
        self._started = 0
        self._code: Any = None  # Ray's reference to it
        self._silent: dict[str, float] = {}  # nodes that do not answer: until when they are avoided

    def bring(self, code: CodeBundle) -> None:
        """Sends user code to the workers, also to those that start later."""
        self._code = ray.put(code)
        for worker in self._staying():
            if worker.address is not None:
                worker.actor.bring.remote(self._code)

    def state(self) -> messages.Workers:
        """Returns the workers' state as of the last ``step``."""
        here = self._staying()
        return messages.Workers(
            tuple(worker.address for worker in here if worker.admitted and worker.address),
            sum(not worker.admitted for worker in here),
            self._only_here,
            self._problem,
        )

    def step(self, wish: int | None) -> None:
        """Advances each worker without waiting, and starts or removes some to have ``wish``.

        Surplus workers drain at the next step, after the loader has received the new ``state``.
        """
        self._hear_calls()
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.reached is not None and worker.reached.done():
                self._answered(worker, worker.reached)
            elif worker.leaving and worker.ends_at is None:
                worker.call = worker.actor.drain.remote()
                worker.ends_at = now + _DRAIN_SECONDS
            elif worker.ends_at is not None and now > worker.ends_at:
                self._end(worker)
            elif (
                wish is None
                and worker.address is None
                and now > worker.requested_at + _PLACED_SECONDS
            ):
                self._end(worker)  # its CPU was taken; a cluster must not grow for such a worker
        missing = self._missing(wish)
        if missing > 0 and self._absence.is_over(now):
            self._workers += [self._new() for _ in range(missing)]
        elif missing < 0 and wish is not None:
            self._let_go(-missing)

    def close(self) -> None:
        for worker in list(self._workers):
            self._end(worker)
        self._pings.shutdown(wait=False, cancel_futures=True)

    def _staying(self) -> list[_Worker]:
        return [worker for worker in self._workers if not worker.leaving]

    def _hear_calls(self) -> None:
        calls = {worker.call: worker for worker in self._workers}
        if calls:
            for call in ray.wait(list(calls), num_returns=len(calls), timeout=0)[0]:
                self._returned(calls[call])

    def _let_go(self, surplus: int) -> None:
        """Removes the newest workers, first those that have not started."""
        here = sorted(self._staying(), key=lambda worker: worker.admitted, reverse=True)
        for worker in here[-surplus:]:
            if worker.admitted:
                worker.leaving = True
            else:
                self._end(worker)

    def _missing(self, wish: int | None) -> int:
        cpus = {
            node["NodeID"]: node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]
        }
        others = {node for node, count in cpus.items() if count and node != self._own_node}
        self._only_here = not others
        here = self._staying()
        if wish is not None:
            return wish - len(here)
        free = ray_state.available_resources_per_node()
        nodes = others or {self._own_node}
        available = sum(int(free.get(node, {}).get("CPU", 0)) for node in nodes)
        starting = sum(worker.address is None for worker in here)
        return available - starting - (0 if others else self._loader_cores)

    def _new(self) -> _Worker:
        now = time.monotonic()
        avoided = [node for node, until in self._silent.items() if until > now]
        if not self._only_here:  # its cores are busy with the loader's local workers
            avoided.append(self._own_node)
        actor = (
            ray.remote(WorkerActor)
            .options(
                num_cpus=1,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=2,  # it drains while it serves
                scheduling_strategy="SPREAD",
                label_selector={_NODE_ID: f"!in({','.join(avoided)})"} if avoided else {},
            )
            .remote()
        )
        begun = actor.start.remote(self._version, self._token, self._started)
        self._started += 1
        return _Worker(actor, begun, now)

    def _returned(self, worker: _Worker) -> None:
        """Handles the end of a worker's call."""
        try:
            result = ray.get(worker.call)
        except Exception as error:  # the actor or its node has failed in any way
            if isinstance(error, ActorUnavailableError) and worker.node is not None:
                self._silent[worker.node] = time.monotonic() + _SILENT_SECONDS
            if worker.leaving:
                self._end(worker)
            else:
                self._failed(worker, f"a worker has ended: {_reason(error)}")
            return
        if worker.leaving:
            self._end(worker)
        elif worker.address is None:
            worker.address, worker.node = Address(*result[0]), result[1]
            worker.reached = self._pings.submit(_reach, worker.address, self._identity)
            worker.call = worker.actor.serve.remote()
            if self._code is not None:
                worker.actor.bring.remote(self._code)

    def _answered(self, worker: _Worker, reached: Future[None]) -> None:
        worker.reached = None
        error = reached.exception()
        if error is None:
            worker.admitted = True
            self._problem = None
            self._absence.answered()
        else:
            self._failed(
                worker,
                f"a worker at {worker.address} {error}, as seen from this machine, though Ray "
                "reaches it: open the ports of the nodes to one another",
            )

    def _failed(self, worker: _Worker, problem: str) -> None:
        self._problem = problem
        now = time.monotonic()
        if self._absence.is_over(now):  # else several failed at once, which counts as one failure
            self._absence.failed(now)
        self._end(worker)

    def _end(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        ray.kill(worker.actor)


def _reach(address: Address, identity: Identity) -> None:
    """Connects once; raises ``TransportError`` if the worker does not answer."""
    connection.connect(address, identity, SERVICE, _REACH_SECONDS).close()


def _reason(error: Exception) -> str:
    """Returns, as one line, why a call to an actor has failed."""
    if isinstance(error, ActorUnavailableError):  # its text differs from one actor to the next
        return "its node does not answer Ray"
    cause = getattr(error, "cause", None)
    text = str(cause if isinstance(cause, Exception) else error).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1 if "Traceback" in text else 0][:500]
