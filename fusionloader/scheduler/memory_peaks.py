"""Whether training and GPU worker fit on the device at their peaks (FusionFlow §5)."""

from __future__ import annotations


class MemoryPeaks:
    """Compares peaks, as training sees them: the worker need not tell what it holds.

    What is in use on the device and not in training's allocator is the worker's, with the contexts
    of both processes, or some other process's, which must fit as well. The worker's allocators keep
    what they have taken for the next launch, so that a look while it works is a look at its peak.

    Attributes:
        others: bytes that were in use besides training's allocator, at most.
    """

    def __init__(self) -> None:
        self.others = 0

    def saw(self, free: int, total: int, reserved: int) -> None:
        """Notes free and all bytes of the device, and those that training's allocator holds."""
        self.others = max(self.others, total - free - reserved)

    def fit(self, training: int, total: int) -> bool:
        """Whether that and training's peak fit on the device, all in bytes."""
        return training + self.others <= total
