"""When the GPU worker may start on work, in temporal and in spatial sharing."""

from __future__ import annotations

from collections.abc import Callable


def needed_beside_training(ready: int) -> bool:
    """Spatial sharing: whether the GPU worker's help is worth the device's time.

    Every launch slows training down. While the next mini-batch lies ready for training, CPU workers
    alone can go on; helping them only fills the window, and then they idle. ``ready`` counts the
    mini-batches that can be delivered now: complete ones behind an incomplete one wait for it, and
    what is reserved for the GPU worker there would never be done.
    """
    return ready < 1


class TemporalGate:
    """Temporal sharing: lets the GPU worker start only while training leaves the device idle.

    ``__next__`` records an event behind everything that training has put on the device. Open from
    the moment the latest such event has passed until the batch is delivered, which puts training to
    work again.

    All calls come from one thread, or under one lock.
    """

    def __init__(self) -> None:
        self._passed: Callable[[], bool] | None = None
        self._idle = False

    def asked(self, passed: Callable[[], bool]) -> None:
        """Training asked for a batch; ``passed`` tells whether the event recorded then has passed.

        Only the latest event counts: an earlier one says nothing of what came after it.
        """
        self._passed = passed
        self._idle = False

    def delivered(self) -> None:
        """Training has its batch and continues: closes the gate.

        A launch may still be under way; the caller waits for its end.
        """
        self._passed = None
        self._idle = False

    @property
    def open(self) -> bool:
        """Whether the GPU worker may start on work now."""
        if not self._idle and self._passed is not None:
            self._idle = self._passed()  # once passed, always passed: the event may be recycled
        return self._idle
