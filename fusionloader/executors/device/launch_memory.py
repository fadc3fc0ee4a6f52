"""Memory for the GPU worker's launches: its own, and when that has run out, training's for a while.

Training lends only while it waits for a batch, and asks its memory back the moment that one is
there. So what runs in borrowed memory runs in small parts, with a look at the lender before each,
and everything goes back as soon as there is nothing to do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

from fusionloader.executors.device.task import EncodedSample
from fusionloader.executors.shortage import is_shortage
from fusionloader.gpu_memory import Borrower, Mapping, MemorySharingError

log = logging.getLogger("fusionloader.gpu")

# What a sample is reckoned to take on its way: an image of 4 megapixels, decoded.
SAMPLE_BYTES = 16 << 20
# Torch asks for segments of 20 MiB when it needs 1 to 10: less is of no use to it.
USEFUL_BYTES = 20 << 20
# Training sleeps on what the wish wakes. If it has just got its batch instead, it waits for this
# launch to end.
_OFFER_SECONDS = 0.01
# Of a launch, between two looks at the lender: it has 30 ms before the worker is killed.
_PARTS = 8

_MOST_FRUITLESS = 100

_REVOKED = "training has asked its memory back"
_SHORT = "no memory on the device"

Launch = Callable[[Sequence[EncodedSample]], list[str | None]]


class MemoryPool(Protocol):
    """Where allocations of a launch are served from."""

    def own(self, in_vain: bool = False) -> AbstractContextManager[None]:
        """Within it they come from the device's free memory.

        With ``in_vain`` a launch has to make do with that: more was wished for, and none came.
        """

    def begin(self, blocks: Sequence[Mapping]) -> None:
        """Makes borrowed blocks known."""

    def borrowed(self) -> AbstractContextManager[None]:
        """Within it they come from these blocks."""

    def end(self) -> None:
        """Forgets the blocks; nothing in them is allocated any more, nor used by the device.

        Raises:
            RuntimeError: something is.
        """

    def trim(self) -> None:
        """Gives the device what is cached and not used."""


class LaunchMemory:
    """Runs launches, and borrows when they fail for want of memory.

    Attributes:
        short: whether its own memory did not suffice at the last launch that tried it.
    """

    def __init__(
        self,
        borrower: Borrower,
        pool: MemoryPool,
        wake_training: Callable[[], None],
        trims: bool,
        give_up_seconds: float = 60.0,
    ) -> None:
        """``wake_training`` makes a waiting ``next()`` look; ``trims`` whenever it goes idle.

        When no launch at all has found memory for ``give_up_seconds``, the next one raises.
        """
        self._borrower = borrower
        self._pool = pool
        self._wake_training = wake_training
        self._trims = trims
        self._blocks: list[Mapping] = []
        self._used = False
        self._fruitless = 0
        self._fruitless_since = 0.0
        self._give_up_seconds = give_up_seconds
        self.short = False

    def run(self, launch: Launch, samples: Sequence[EncodedSample]) -> list[str | None]:
        """Launches; returns for each sample ``None``, or why a CPU worker has to do it.

        Raises:
            MemoryError: there was no memory for long, neither of its own nor borrowed.
        """
        self._used = True
        if not self._blocks:
            done = _unless_short(self._pool.own, launch, samples)
            if done is not None:
                if self.short:
                    self._borrower.want(0)
                self.short = False
                return done
            self.short = True
            self._pool.trim()
            self._borrow(len(samples) * SAMPLE_BYTES)
        step = max(1, len(samples) // _PARTS)
        results: list[str | None] = []
        for begin in range(0, len(samples), step):
            if self._blocks and self._borrower.revoked:  # training waits for what is under way
                self.give_back()
                results += [_REVOKED] * (len(samples) - begin)
                break
            results += self._part(launch, samples[begin : begin + step])
        self._count(results)
        return results

    def _count(self, results: list[str | None]) -> None:
        """Gives up after many launches in a row in which all had to be left to CPU workers.

        Not before some time has passed: training that never waits lends nothing, and then a batch
        does not need this worker. One that is started again has smaller launches, and in the end
        there is none.
        """
        if _SHORT not in results or None in results:
            self._fruitless = 0
            return
        if self._fruitless == 0:
            self._fruitless_since = time.monotonic()
        self._fruitless += 1
        seconds = time.monotonic() - self._fruitless_since
        if self._fruitless >= _MOST_FRUITLESS and seconds >= self._give_up_seconds:
            raise MemoryError(f"{_SHORT} for {self._fruitless} launches in a row")

    def _part(self, launch: Launch, part: Sequence[EncodedSample]) -> list[str | None]:
        memory = self._pool.borrowed if self._blocks else partial(self._pool.own, in_vain=True)
        return _unless_short(memory, launch, part) or [_SHORT] * len(part)

    def _borrow(self, wanted: int) -> None:
        deadline = time.monotonic() + _OFFER_SECONDS
        try:
            self._borrower.want(wanted)
            self._wake_training()
            while not self._blocks:
                while (block := self._borrower.try_borrow(USEFUL_BYTES)) is not None:
                    self._blocks.append(block)
                left = deadline - time.monotonic()
                if self._blocks or left <= 0:
                    break
                self._borrower.wait_for_change(left)
        except MemorySharingError as error:
            log.warning("the GPU worker cannot borrow memory: %s", error)
        if self._blocks:
            self._borrower.want(0)
            self._pool.begin(self._blocks)

    def look(self) -> None:
        """Returns what is borrowed if training asks for it; to be called between launches."""
        if self._blocks and self._borrower.revoked:
            self.give_back()

    def rest(self) -> None:
        """Returns everything: there is nothing to do now."""
        self.give_back()
        if self._used and (self._trims or self.short):
            self._pool.trim()
        self._used = False

    def give_back(self) -> None:
        """Returns all that is borrowed.

        A wish that was not met stays: training meets it when it waits for the next batch.
        """
        if not self._blocks:
            return
        self._pool.end()
        blocks, self._blocks = self._blocks, []
        for block in blocks:
            block.return_()


def _unless_short(
    memory: Callable[[], AbstractContextManager[None]],
    launch: Launch,
    samples: Sequence[EncodedSample],
) -> list[str | None] | None:
    """Launches with that memory; ``None`` where it ran out.

    The error is dropped here: its traceback would keep what the launch has allocated.
    """
    try:
        with memory():
            return launch(samples)
    except Exception as error:
        if not is_shortage(error):
            raise
        log.debug("a launch of %d samples ran out of memory: %s", len(samples), error)
    return None
