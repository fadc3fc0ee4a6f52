"""The remote workers of a loader, which may come and go while training runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fusionloader.sharing.remote.user_code.bundle import CodeBundle
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity


class FleetLoad(NamedTuple):
    """How busy remote workers are, which decides how many there should be.

    Attributes:
        busy_share: fraction of the time that a worker has had requests, on average, 0 to 1.
        wait_share: fraction of the time that training has waited for batches, 0 to 1.
        remote_share: fraction of the samples that remote workers made; ``None`` without samples.
    """

    busy_share: float
    wait_share: float
    remote_share: float | None = None


class FleetState(NamedTuple):
    """The workers of a fleet, and what loaders need of them.

    Attributes:
        workers: number of workers that take requests.
        needed: number that this loader needs; ``None`` if all are used that there are.
        ranks: number of this machine's ranks that share the workers.
    """

    workers: int
    needed: int | None = None
    ranks: int = 1


class Fleet:
    """The remote workers of a loader: here those that run already, at addresses of the user's.

    Attributes:
        identity: credentials for connections to them.
    """

    def __init__(self, addresses: Sequence[Address], identity: Identity) -> None:
        self.identity = identity
        self._addresses = tuple(addresses)

    def addresses(self) -> Sequence[Address]:
        """Returns the workers that take requests now, without waiting; not those that leave.

        Those of the user's list are all returned, whether a worker answers there or not.
        """
        return self._addresses

    def state(self) -> FleetState:
        """Returns the number of workers, without waiting."""
        return FleetState(len(self.addresses()))

    def report_load(self, load: FleetLoad) -> None:
        """Called about twice a second, with the load since the last call."""

    def bring(self, code: CodeBundle) -> None:
        """Sends user code to the workers, in place of what they had; only Ray's take it."""
        raise AssertionError("user code for servers")

    def explain(self) -> str:
        """Returns where the workers come from, in a line."""
        return "remote workers at " + ", ".join(map(str, self._addresses))

    def close(self) -> None:
        """Ends what was started for the loader."""
