"""Memory for the GPU worker's launches: its own, and borrowed blocks when that has run out.

Training lends memory while it waits for a batch, and revokes it when the batch is ready. A launch
in borrowed memory therefore runs in small parts, with a check for revocation before each. All
blocks are returned when there is nothing to do.
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

# Estimated bytes of a sample in a launch: a decoded image of 4 megapixels.
SAMPLE_BYTES = 16 << 20
# Torch allocates segments of 20 MiB for requests of 1 to 10 MiB: smaller blocks are useless to it.
USEFUL_BYTES = 20 << 20
# Time for training to wake up and lend. If it has got its batch, it waits for this launch.
_OFFER_SECONDS = 0.01
# Parts of a launch, with a check for revocation between: a worker is killed after 30 ms or more.
_PARTS = 8
_MOST_FRUITLESS = 100  # launches in a row

_REVOKED = "training has revoked its memory"
_SHORT = "no memory on the device"

Launch = Callable[[Sequence[EncodedSample]], list[str | None]]


class LaunchMemory:
    """Runs launches, and borrows memory for those that run out of it.

    Attributes:
        short: whether the last launch in the worker's own memory ran out of it.
        used: whether there has been a launch since ``rest``, also one that was not run here.
    """

    def __init__(
        self,
        borrower: Borrower,
        pool: TorchPool,
        wake_training: Callable[[], None],
        trims: bool,
        give_up_seconds: float = 60.0,
    ) -> None:
        """``wake_training`` makes a waiting ``next()`` check for requests.

        With ``trims`` cached memory is freed whenever the worker goes idle. After launches have
        found no memory for ``give_up_seconds``, the next one raises.
        """
        self._borrower = borrower
        self._pool = pool
        self._wake_training = wake_training
        self._trims = trims
        self._blocks: list[Mapping] = []
        self.used = False
        self._fruitless = 0
        self._fruitless_since = 0.0
        self._give_up_seconds = give_up_seconds
        self._answered = False  # training's probe
        self._refused = False
        self.short = False

    def run(self, launch: Launch, samples: Sequence[EncodedSample]) -> list[str | None]:
        """Launches; returns for each sample ``None``, or why a CPU worker has to make it.

        Raises:
            MemoryError: there has been neither own nor borrowed memory for long.
        """
        self.used = True
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
            if self._blocks and self._borrower.revoked:  # training waits for the part under way
                self.give_back()
                results += [_REVOKED] * (len(samples) - begin)
                break
            results += self._part(launch, samples[begin : begin + step])
        self._count(results)
        return results

    def _count(self, results: list[str | None]) -> None:
        """Gives up after many launches in a row in which no sample was made.

        Some time must have passed, too: training that never waits lends nothing, but then it does
        not need this worker. A worker that is started again has smaller launches; in the end none
        is started.
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
        own = partial(self._pool.own, nothing_to_borrow=True)
        memory = self._pool.borrowed if self._blocks else own
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
        """Answers training's probe, whether its memory can be opened in this process, once."""
        if self._answered or self._refused:
            return
        try:
            self._answered = answer_if_asked(self._borrower)
        except MemorySharingError as error:  # training logs it, once
            log.debug("no memory can be borrowed: %s", error)
            self._refused = True
        if self._answered or self._refused:
            self._wake_training()

    def look(self) -> None:
        """Returns borrowed memory if training revokes it; must be called between launches."""
        self._answer()
        if self._blocks and self._borrower.revoked:
            self.give_back()

    def rest(self) -> None:
        """Returns borrowed memory and frees cached memory; called when there is nothing to do."""
        self.give_back()
        if self.used and (self._trims or self.short):
            self._pool.trim()
        self.used = False

    def give_back(self) -> None:
        """Returns all borrowed memory.

        An open request stays: training may grant it when it waits for the next batch.
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
    """Launches with that memory; returns ``None`` if it ran out.

    The error is dropped here: its traceback would keep the launch's allocations alive.
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

    Torch caches memory in a ``MemPool``, and only frees all of it when the pool ends. So there is a
    new pool each time that blocks are borrowed. DALI's allocations are served in any thread, if
    ``dali.borrowing`` can be installed.
    """

    def __init__(self, device: int) -> None:
        borrowing.install(device)
        self._device = device
        self._allocator: torch.cuda.memory.CUDAPluggableAllocator | None = None
        self._pool: torch.cuda.MemPool | None = None
        self._blocks: list[Mapping] = []

    def own(self, nothing_to_borrow: bool = False) -> AbstractContextManager[None]:
        """Returns a context in which allocations come from the device's free memory.

        ``nothing_to_borrow`` says that memory was requested, and none was lent.
        """
        return borrowing.nothing_to_borrow() if nothing_to_borrow else nullcontext()

    def begin(self, blocks: Sequence[Mapping]) -> None:
        """Adds borrowed blocks, and makes the pool that allocates in them."""
        import torch

        if self._allocator is None:  # kept: torch refers to it as long as the process lives
            self._allocator = torch.cuda.memory.CUDAPluggableAllocator(
                pool.LIBRARY, pool.MALLOC, pool.FREE
            )
        for block in blocks:
            pool.add(block)
            self._blocks.append(block)
        with torch.cuda.device(self._device):  # a pool belongs to the device that is current now
            self._pool = torch.cuda.MemPool(self._allocator.allocator())  # type: ignore[no-untyped-call]

    def borrowed(self) -> AbstractContextManager[None]:
        """Returns a context in which allocations come from the borrowed blocks."""
        import torch

        assert self._pool is not None
        return torch.cuda.use_mem_pool(self._pool, self._device)

    def end(self) -> None:
        """Removes all blocks; on return the device no longer uses them.

        Raises:
            RuntimeError: something in them is still allocated.
        """
        import torch

        torch.cuda.synchronize(self._device)
        self._pool = None
        release_blocks(self._blocks, torch.cuda.empty_cache)
        self._blocks.clear()

    def trim(self) -> None:
        """Frees memory that torch has cached and memory that DALI's pipelines do not use."""
        import torch

        torch.cuda.empty_cache()
        borrowing.release_unused_memory()


def release_blocks(blocks: Sequence[Mapping], empty_cache: Callable[[], None]) -> None:
    """Removes blocks from the pool when nothing in them is allocated or used by the device.

    ``empty_cache`` returns cached memory to the pool. If that does not suffice, DALI's pipelines
    are dropped, then cyclic garbage is collected: the cheapest first, since training waits.

    Raises:
        RuntimeError: something is still allocated; no block may be returned.
        CudaError: the device is lost; no block may be returned.
    """
    for block in blocks:  # DALI's threads might go on allocating in it
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
