"""A loader's remote workers and their counters, over all of its iterators."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fusionloader.observe.statistics.waits import Waits
from fusionloader.options.remote_settings import Remote
from fusionloader.sharing.ranks.discovery import JobRanks
from fusionloader.sharing.remote.fleet import Fleet, FleetLoad, FleetState
from fusionloader.sharing.remote.offload_metrics import MetricKeys
from fusionloader.sharing.remote.proxy.greeting import RemoteWork
from fusionloader.sharing.remote.remote_counters import RemoteCounters
from fusionloader.system.finalizers import ExitFinalizer
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity, read_token
from fusionloader.system.transport.tokens import default_token_file

_REPORT_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """What the proxy of an iterator needs; descriptors are those of the training process.

    Attributes:
        workers: the loader's remote workers.
        work: what the workers make.
        keys: keys of the metrics that FastFlow's policy stores.
        channels: number of channels of a result.
        table_fd: descriptor of the dataset's table, -1 with user code.
        table_bytes: size of the table.
    """

    workers: RemoteWorkers
    work: RemoteWork
    keys: MetricKeys
    channels: int
    table_fd: int
    table_bytes: int


class RemoteWorkers:
    """The workers are found or started with an iterator, and again after ``close()``.

    Attributes:
        counters: counters that the proxies of all iterators write to.
    """

    def __init__(
        self,
        settings: Remote,
        steps: Waits,
        num_workers: int,
        made_here: Callable[[], int] = lambda: 0,
        ranks: JobRanks | None = None,
    ) -> None:
        """Finds the workers, or begins to start them.

        Args:
            settings: the user's settings.
            steps: sums over training's steps.
            num_workers: number of workers on this machine.
            made_here: returns the number of samples that this machine has made.
            ranks: the ranks to share workers with that Ray starts, if any.

        Raises:
            ValueError: an address or the token file is invalid.
            ImportError: a package is not installed.
            ConnectionError: there is no such Ray cluster.
        """
        self._settings, self._num_workers, self._ranks = settings, num_workers, ranks
        self._fleet: Fleet | None = None
        self._ends: Callable[[], object] = lambda: None
        self._begin()
        self.counters = RemoteCounters.create()
        self._steps, self._made_here = steps, made_here
        self._reported_ns = time.monotonic_ns()
        self._reported = 0, 0, 0, 0  # waited and busy in ns; samples made there and here

    @property
    def fleet(self) -> Fleet:
        """The workers; they are found or started again after ``close()``.

        Raises:
            ConnectionError: the Ray cluster is no longer there.
        """
        return self._fleet or self._begin()

    def _begin(self) -> Fleet:
        self._ends()  # if an exception has come in `close` before it
        fleet = self._fleet = make_fleet(self._settings, self._num_workers, self._ranks)
        # Ends the workers of a loader that is never closed, too.
        self._ends = ExitFinalizer(self, fleet.close)
        return fleet

    def state(self) -> FleetState:
        """Returns the number of workers, and what loaders need; none after ``close()``."""
        return FleetState(0) if self._fleet is None else self._fleet.state()

    def addresses(self) -> Sequence[Address]:
        """Returns those of the workers; none after ``close()``, whose iterators may go on."""
        return () if self._fleet is None else self._fleet.addresses()

    def explain(self) -> list[str]:
        """Returns where the workers come from, in a line, if there are any now."""
        return [] if self._fleet is None else [self._fleet.explain()]

    # ---- of training's steps, see statistics.waits.StepObserver ---------------------------------

    def asked(self) -> None:
        """Called when training has entered ``next()``: publishes the steps until here."""
        steps, seconds, waited = self._steps.sums()
        self.counters.steps = steps
        self.counters.step_ns, self.counters.waited_ns = int(seconds * 1e9), int(waited * 1e9)

    def delivered(self) -> None:
        """Called before ``next()`` returns, which counts this step only then."""

    # ---- of the fleet ---------------------------------------------------------------------------

    def report_load(self) -> None:
        """Reports the workers' load to the fleet, every 0.5 s at most."""
        now = time.monotonic_ns()
        elapsed = now - self._reported_ns
        if elapsed < _REPORT_SECONDS * 1e9:
            return
        lanes = self.counters.lanes()
        busy, there = sum(lane.busy_ns for lane in lanes), sum(lane.samples for lane in lanes)
        found = self.counters.waited_ns, busy, there, self._made_here()
        waited, busy, there, here = map(operator.sub, found, self._reported)
        self._reported_ns, self._reported = now, found
        busy_share = busy / elapsed / max(len(self.addresses()), 1)
        remote_share = there / (there + here) if there + here > 0 else None
        shares = min(busy_share, 1.0), min(waited / elapsed, 1.0), remote_share
        if self._fleet is not None:
            self._fleet.report_load(FleetLoad(*shares))

    def close(self) -> None:
        """Ends what was started for the loader."""
        self._fleet = None
        self._ends()


def make_fleet(settings: Remote, num_workers: int, ranks: JobRanks | None = None) -> Fleet:
    """Returns the remote workers of a loader with ``num_workers`` on this machine.

    Workers that Ray starts are shared with ``ranks``, if any.

    Raises:
        ValueError: an address or the token file is invalid.
        ImportError: a package is not installed.
        ConnectionError: there is no such Ray cluster.
    """
    if settings.servers is None:
        from fusionloader.sharing.remote.ray_fleet import RayFleet

        return RayFleet(settings, num_workers + 1, ranks)
    token = read_token(settings.token_file or default_token_file())
    return Fleet([Address.parse(each) for each in settings.servers], Identity.of(token))
