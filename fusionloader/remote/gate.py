"""When lanes may claim: the offload policies, fed with what the queue and the board say."""

from __future__ import annotations

from typing import Protocol

from fusionloader import _native
from fusionloader.remote_settings import Offload

_FEW_READY = 2
"""Mini-batches in stock, from which on training is not about to wait."""


class Gate(Protocol):
    """Decides for all lanes of a loader, from their threads."""

    def may_claim(self, queue: _native.WorkerQueue) -> bool:
        """Whether a lane may ask for more; ``queue`` is the lane's."""


class BalanceGate:
    """Claims decide, and this machine's cores come first: remote ones help where stock is short."""

    def may_claim(self, queue: _native.WorkerQueue) -> bool:
        """Whether fewer mini-batches are ready than training takes while more are made."""
        return queue.ready() < _FEW_READY


class OpenGate:
    """Leaves to remote workers all that they take."""

    def may_claim(self, queue: _native.WorkerQueue) -> bool:
        """Returns ``True``."""
        return True


def make_gate(offload: Offload) -> Gate:
    """Returns the gate of a policy."""
    return OpenGate() if offload == "all" else BalanceGate()
