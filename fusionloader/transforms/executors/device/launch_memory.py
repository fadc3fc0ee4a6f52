"""Memory for the GPU worker's launches: its own, and when that has run out, borrowed blocks.

Training lends while it waits for a batch, and revokes its memory when the batch is there. So a
launch in borrowed memory runs in small parts, with a look at the lender before each, and all blocks
are returned when there is nothing to do.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from fusionloader.system.gpu_memory import Borrower, Mapping, MemorySharingError, pool
from fusionloader.system.gpu_memory.probe import answer_if_asked
from fusionloader.transforms.executors.dali.memory import borrowing
from fusionloader.transforms.executors.dali.prebuilt import drop_all
from fusionloader.transforms.executors.device.task import EncodedSample
from fusionloader.transforms.executors.device_errors import is_shortage

if TYPE_CHECKING:
    import torch

log = logging.getLogger("fusionloader.gpu")

# What a sample is reckoned to take on its way: an image of 4 megapixels, decoded.
SAMPLE_BYTES = 16 << 20
# Torch asks for segments of 20 MiB when it needs 1 to 10: less is of no use to it.
USEFUL_BYTES = 20 << 20
# Training wakes up and lends. If it has just got its batch instead, it waits for this launch.
_OFFER_SECONDS = 0.01
# Of a launch, between two looks at the lender: it has 30 ms or more before the worker is killed.
_PARTS = 8

_MOST_FRUITLESS = 100

_REVOKED = "training has asked its memory back"
_SHORT = "no memory on the device"

Launch = Callable[[Sequence[EncodedSample]], list[str | None]]


class LaunchMemory:
    """Runs launches, and borrows when they run out of memory.

    Attributes:
        short: whether its own memory did not suffice at the last launch that tried it.
    """

    def __init__(
        self,
        borrower: Borrower,
        pool: TorchPool,
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
        self._answered = False  # the probe
        self._refused = False
        self.short = False

    def run(self, launch: Launch, samples: Sequence[EncodedSample]) -> list[str | None]:
        """Launches; returns for each sample ``None``, or why a CPU worker has to do it.

        Raises:
            MemoryError: there was no memory for long, neither of its own nor borrowed.
        """
        self._used = True
        if self._refused:
            return launch(samples)
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
                self._answer()
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

    def _answer(self) -> None:
        """Answers training's question whether its memory can be opened here, once."""
        if self._answered or self._refused:
            return
        try:
            self._answered = answer_if_asked(self._borrower)
        except MemorySharingError as error:  # training says so, once
            log.debug("no memory can be borrowed: %s", error)
            self._refused = True
        if self._answered or self._refused:
            self._wake_training()

    def look(self) -> None:
        """Returns what is borrowed if training asks for it; to be called between launches."""
        self._answer()
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

        A request that was not met stays: training may meet it when it waits for the next batch.
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


class TorchPool:
    """Serves torch's allocations of one thread on a device, from borrowed blocks or not.

    Torch caches what it gets, in a ``MemPool``: there is one for each time that blocks are
    borrowed, since only with its end does everything in it come back. DALI's allocations are
    served in any thread, where ``dali.borrowing`` can be installed.
    """

    def __init__(self, device: int) -> None:
        borrowing.install(device)
        self._device = device
        self._allocator: torch.cuda.memory.CUDAPluggableAllocator | None = None
        self._pool: torch.cuda.MemPool | None = None
        self._blocks: list[Mapping] = []

    def own(self, in_vain: bool = False) -> AbstractContextManager[None]:
        """Within it allocations come from the device's free memory.

        With ``in_vain`` a launch has to make do with that: more was asked for, and none was lent.
        """
        return borrowing.in_vain() if in_vain else nullcontext()

    def begin(self, blocks: Sequence[Mapping]) -> None:
        """Adds borrowed blocks."""
        import torch

        if self._allocator is None:  # kept: torch refers to it for as long as the process lives
            self._allocator = torch.cuda.memory.CUDAPluggableAllocator(
                pool.LIBRARY, pool.MALLOC, pool.FREE
            )
        for block in blocks:
            pool.add(block)
            self._blocks.append(block)
        with torch.cuda.device(self._device):  # a pool is of the device that is current now
            self._pool = torch.cuda.MemPool(self._allocator.allocator())  # type: ignore[no-untyped-call]

    def borrowed(self) -> AbstractContextManager[None]:
        """Within it allocations come from the borrowed blocks."""
        import torch

        assert self._pool is not None
        return torch.cuda.use_mem_pool(self._pool, self._device)

    def end(self) -> None:
        """Removes the blocks; nothing in them is allocated any more, nor used by the device.

        Raises:
            RuntimeError: something is.
        """
        import torch

        torch.cuda.synchronize(self._device)
        self._pool = None
        release_blocks(self._blocks, torch.cuda.empty_cache)
        self._blocks.clear()

    def trim(self) -> None:
        """Gives the device what torch has cached and what DALI's pipelines do not use."""
        import torch

        torch.cuda.empty_cache()
        borrowing.release_unused_memory()


def release_blocks(blocks: Sequence[Mapping], empty_cache: Callable[[], None]) -> None:
    """Takes blocks out of the pool, once nothing in them is allocated or used by the device.

    ``empty_cache`` returns to the pool what is cached of it. Where that does not suffice, DALI's
    pipelines are dropped, then cyclic garbage is collected: cheapest first, since training waits.

    Raises:
        RuntimeError: something is still allocated, and no block may be returned.
        CudaError: the device is lost, likewise.
    """
    for block in blocks:  # DALI's threads would go on allocating
        pool.freeze(block)
    for drop in (lambda: None, drop_all, gc.collect):
        drop()
        empty_cache()
        pool.settle()
        if not pool.live_bytes():
            break
    else:
        raise RuntimeError(f"{pool.live_bytes()} bytes are still allocated in borrowed memory")
    for block in blocks:
        pool.remove(block)
