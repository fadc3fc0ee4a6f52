"""When the GPU worker may start on work, in temporal and in spatial sharing."""

from __future__ import annotations

from collections.abc import Callable


def needed_beside_training(ready: int, enough: int = 1) -> bool:
    """Spatial sharing: whether the GPU worker's help is worth the device's time.

    Every launch slows training down. While the next ``enough`` mini-batches lie ready for training,
    CPU workers alone can go on; helping them only fills the window, and then they idle. ``ready``
    counts those that can be delivered now: complete ones behind an incomplete one wait for it, and
    what is reserved for the GPU worker there would never be done.
    """
    return ready < enough


class TemporalGate:
    """Temporal sharing: lets the GPU worker in only while training leaves the device idle.

    ``__next__`` records an event behind everything that training has put on the device. Open from
    the moment the latest such event has passed until the batch is delivered, which puts training to
    work again.

    All calls come from one thread, or under one lock.
    """

    def __init__(self) -> None:
        self._passed: Callable[[], bool] | None = None
        self._idle = False
        self._inside = 0

    def asked(self, passed: Callable[[], bool]) -> None:
        """Training asked for a batch; ``passed`` tells whether the event recorded then has passed.

        Only the latest event counts: an earlier one says nothing of what came after it.
        """
        self._passed = passed
        self._idle = False

    def delivered(self) -> bool:
        """Training has its batch and goes to work: closes the gate.

        Returns whether the GPU worker is still inside: training's stream must then wait for the end
        of its launch, or both would be on the device at once.
        """
        self._passed = None
        self._idle = False
        return self._inside > 0

    @property
    def open(self) -> bool:
        """Whether the GPU worker may start on work now."""
        if not self._idle and self._passed is not None:
            self._idle = self._passed()  # once passed, always passed: the event may be recycled
        return self._idle

    def enter(self) -> bool:
        """Asks to start a launch; ``leave`` must follow if the answer is yes."""
        if not self.open:
            return False
        self._inside += 1
        return True

    def leave(self) -> None:
        """A launch has ended on the device.

        Raises:
            RuntimeError: without a launch that entered.
        """
        if self._inside == 0:
            raise RuntimeError("TemporalGate.leave() without enter()")
        self._inside -= 1
