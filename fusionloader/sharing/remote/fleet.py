"""Which remote workers there are: they may come and go while training runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fusionloader.sharing.remote.user_code.bundle import CodeBundle
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity


class FleetLoad(NamedTuple):
    """How busy remote workers are, as their number is decided by.

    Attributes:
        busy_share: of the time, that they have had requests to work on, on average.
        wait_share: of the time, that training has waited for batches.
    """

    busy_share: float
    wait_share: float


class Fleet(Protocol):
    """The remote workers of a loader.

    Attributes:
        identity: that connections to them show.
    """

    identity: Identity

    def addresses(self) -> Sequence[Address]:
        """Returns who may be asked now, without waiting; one that leaves is missing."""

    def report_load(self, load: FleetLoad) -> None:
        """Hears how busy they were since the last time, about twice a second."""

    def bring(self, code: CodeBundle) -> None:
        """Has the workers get user code, in the place of what they had."""

    def explain(self) -> str:
        """Returns where the workers come from, in a line."""

    def close(self) -> None:
        """Ends what was started for the loader."""


class ListedFleet:
    """Workers that run already, at addresses that the user gave."""

    def __init__(self, addresses: Sequence[Address], identity: Identity) -> None:
        self.identity = identity
        self._addresses = tuple(addresses)

    def addresses(self) -> Sequence[Address]:
        """Returns all of them, whether they answer or not."""
        return self._addresses

    def report_load(self, load: FleetLoad) -> None:
        """Does nothing: they are not started from here."""

    def bring(self, code: CodeBundle) -> None:
        """Never called: user code is for workers that Ray starts."""
        raise AssertionError("user code for servers")

    def explain(self) -> str:
        """Returns their addresses."""
        return "remote workers at " + ", ".join(map(str, self._addresses))

    def close(self) -> None:
        """Leaves them running: they are not started from here."""
