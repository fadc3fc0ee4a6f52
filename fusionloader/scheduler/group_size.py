"""How many tiny-batches the GPU worker claims at once.

A launch has a fixed cost, so larger groups are cheaper per sample. But training waits for the last
group of a mini-batch. Beside training the mini-batches behind it are made meanwhile, so that it may
take longer. In 216 simulations (benchmarks/simulated_gpu_worker.py) a limit of one mini-batch had
up to 1.54 times the throughput of half of one, and was never slower than CPU workers alone. A limit
of two was up to 20 % slower than these.
"""

from __future__ import annotations

import statistics

# Mini-batches' times that one launch may take at most, beside training or not.
_DELAY_SHARE = {False: 0.25, True: 1.0}
_LEAST_GAIN = 0.03  # minimum fraction of the time per sample that a doubling must save
_TRIALS = 3  # mini-batches with a new size before it is judged, without the first one
_REST = 20  # mini-batches after which a doubling that did not pay is tried again


class GroupSize:
    """Doubles the group while the time per sample falls, and the mini-batch's time allows it.

    Sizes are compared over whole mini-batches. The GPU worker begins each with the largest samples,
    so that a comparison of single launches would find the first ones slow.

    Attributes:
        size: number of tiny-batches to claim at once.
    """

    def __init__(self, largest: int = 32) -> None:
        """Starts at one tiny-batch; a group has at most ``largest``."""
        self.size = 1
        self._largest = largest
        self._resting = 0
        self._beside = False
        self._seen = 0  # mini-batches with this size
        self._smaller: float | None = None  # seconds per sample at half the size
        self._samples = 0
        self._seconds = self._longest = 0.0
        self._change(1)

    def launched(self, samples: int, seconds: float) -> None:
        self._samples += samples
        self._seconds += seconds
        self._longest = max(self._longest, seconds)

    def finished(self, makespan: float, beside: bool = False) -> None:
        """Ends a mini-batch that took ``makespan`` seconds from first claim to last completion.

        ``beside`` says whether the worker works beside training.
        """
        samples, seconds, longest = self._samples, self._seconds, self._longest
        self._begin_mini_batch()
        self._resting -= 1
        if beside != self._beside:  # what was measured before does not compare
            self._beside, self._seen = beside, 0
            self._change(self.size)
        if samples == 0:
            return
        self._seen += 1
        if self._seen == 1:
            return  # it was begun with another size
        self._shares.append(longest / makespan)
        self._per_sample.append(seconds / samples)
        if len(self._shares) == _TRIALS:
            share, per_sample = map(statistics.median, (self._shares, self._per_sample))
            self._judge(share, per_sample, _DELAY_SHARE[beside])

    def _judge(self, share: float, per_sample: float, most: float) -> None:
        smaller, size = self._smaller, self.size
        self._change(size)
        if size > 1 and share > most:
            self._change(size // 2)
        elif smaller is not None and per_sample > smaller * (1 - _LEAST_GAIN):
            self._resting = _REST
            self._change(size // 2)
        # Twice the group takes at most twice the time.
        elif self._resting <= 0 and 2 * size <= self._largest and 2 * share <= most:
            self._change(2 * size)
            self._smaller = per_sample

    def _change(self, size: int) -> None:
        if size != self.size:
            self._seen = 0
        self.size = size
        self._smaller = None
        self._shares: list[float] = []
        self._per_sample: list[float] = []
        self._begin_mini_batch()

    def _begin_mini_batch(self) -> None:
        self._samples = 0
        self._seconds = self._longest = 0.0
