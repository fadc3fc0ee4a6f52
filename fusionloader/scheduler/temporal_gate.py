"""When the GPU worker may start work, in temporal and in spatial sharing."""

from __future__ import annotations

from collections.abc import Callable


def needed_beside_training(ready: int) -> bool:
    """Whether the GPU worker should help in spatial sharing.

    Every launch slows training down. While the next mini-batch is ready for training, CPU workers
    suffice; help would only fill the window, and then they idle. ``ready`` is the number of
    mini-batches that can be delivered now. Complete ones behind an incomplete one do not count:
    otherwise the tiny-batches that are reserved for the GPU worker in it would never be done.
    """
    return ready < 1


class TemporalGate:
    """Temporal sharing: lets the GPU worker start only while training leaves the device idle.

    ``__next__`` records an event behind all work that training has queued on the device. The gate
    opens when the latest such event has passed. It closes when the batch is delivered, since
    training then continues.

    All calls must come from one thread, or hold one lock.
    """

    def __init__(self) -> None:
        self._passed: Callable[[], bool] | None = None
        self._idle = False

    def requested(self, passed: Callable[[], bool]) -> None:
        """Registers the event of a batch's request; ``passed`` returns whether it has passed.

        Only the latest event counts: work may be queued behind an earlier one.
        """
        self._passed = passed
        self._idle = False

    def delivered(self) -> None:
        """Closes the gate: training has its batch.

        A launch may still be running; the caller waits for its end.
        """
        self._passed = None
        self._idle = False

    @property
    def open(self) -> bool:
        """Whether the GPU worker may start work now."""
        if not self._idle and self._passed is not None:
            self._idle = self._passed()  # once passed, always passed: the event may be recycled
        return self._idle
