"""Training lends its GPU worker memory while ``next()`` waits, and takes it back before it returns.

What is lent are blocks that training's allocator holds but does not use. They are claimed from it,
so that it neither hands them out nor frees them meanwhile, and given back to it when the borrower
has returned them, or has been killed.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass

from fusionloader.gpu.caching_allocator import TorchAllocator
from fusionloader.scheduler.memory_lending import Patience, candidates, only_expandable, plan_claims
from fusionloader.system.gpu_memory import (
    Block,
    Grant,
    LedgerHandle,
    Lender,
    LendingStats,
    MemorySharingError,
    NotReturnedError,
)
from fusionloader.system.gpu_memory.lender import PATIENCE, under_mps
from fusionloader.system.gpu_memory.probe import Probe
from fusionloader.system.processes import Process
from fusionloader.transforms.executors.device.launch_memory import USEFUL_BYTES, TorchPool

log = logging.getLogger("fusionloader.gpu")

# For a killed process to end. One that is stuck in the kernel keeps its blocks.
_ENDING_SECONDS = 10.0
# For the worker to answer the probe, which it does between two launches.
_PROBE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """What may be lent to a GPU worker.

    Attributes:
        device: CUDA's number of it.
        limit: in bytes, at a time.
        always: lend whenever the worker wants memory; else only if the peaks do not fit together.
        allocator: that holds the memory.
        pool: makes what the worker allocates from, in its process.
        patience: seconds that the worker has, at first, to return what is asked back.
    """

    device: int
    limit: int
    always: bool
    allocator: TorchAllocator
    pool: Callable[[], TorchPool]
    patience: float = PATIENCE


class MemoryLender:
    """Lends to one GPU worker at a time.

    Attributes:
        short: whether memory was found not to suffice for training and the worker together.
        why_not: why nothing is lent, in words; ``None`` while something may be.
    """

    def __init__(self, options: MemoryOptions) -> None:
        self._options = options
        self._allocator = options.allocator
        self._session: _Session | None = None
        self._out: list[Grant] = []
        self._nothing_left = False
        self._before: Counter[str] = Counter()
        self._patience = Patience(options.patience)
        self._kills = 0
        self.short = False
        self.why_not = self._allocator.refusal()
        if self.why_not is not None:
            self._say_off()

    def open_ledger(self) -> LedgerHandle | None:
        """Returns the ledger of a new worker, ``None`` to lend nothing; the former has ended."""
        self._end_session()
        if self.why_not is not None:
            return None
        try:
            self._session = _Session(self._options.device)
            return self._session.lender.ledger_handle()
        except MemorySharingError as error:
            self._decline(str(error))
            return None

    # ---- lending -------------------------------------------------------------------------------

    def lend(self) -> None:
        """Lends what the worker wants, as far as there is; training waits for a batch.

        One atomic load if it wants nothing.
        """
        session = self._session
        if session is None or self._nothing_left:
            return
        wanted = session.lender.wanted_bytes
        if wanted == 0:
            return
        wanted -= self._on_offer()
        if wanted <= 0:
            return
        if self._options.always:
            self.short = True
        elif not self._peaks_clash(wanted):
            return
        if self._allocator.capturing():  # an allocation, or waiting for the device, would break it
            return
        try:
            if session.prove():
                self._lend(session, wanted)
            elif session.refused is not None:
                self._decline(session.refused)
        except RuntimeError as error:  # of the driver, the ledger or torch
            self._decline(str(error))
        except (KeyError, TypeError) as error:
            self._decline(f"the snapshot of torch's allocator is not as expected: {error!r}")

    def _lend(self, session: _Session, wanted: int) -> None:
        allocator, device = self._allocator, self._options.device
        snapshot, reserved = allocator.snapshot(), allocator.reserved()
        if only_expandable(snapshot, device=device):
            self._decline("CUDA IPC cannot share expandable_segments, which torch is set to use")
            return
        free = candidates(snapshot, device=device, smallest=USEFUL_BYTES)
        known = {(claim.address, claim.size, claim.stream) for claim in free}
        room = self._options.limit - sum(grant.block.nbytes for grant in self._out)
        self._nothing_left = True
        for claim in plan_claims(snapshot, room, device=device, smallest=USEFUL_BYTES):
            if wanted <= 0:
                self._nothing_left = False
                break
            address = allocator.take(claim.size, claim.stream)
            # Another one if sizes are rounded up, or another thread was faster.
            if (address, claim.size, claim.stream) not in known:
                allocator.give(address)
                break
            known.remove((address, claim.size, claim.stream))
            try:
                grant = session.lender.yield_block(Block(address, claim.size, claim.stream))
            except MemorySharingError:
                allocator.give(address)
                raise
            self._out.append(grant)
            wanted -= claim.size
        if allocator.reserved() > reserved:
            self._decline("claiming free blocks made training's allocator take more memory")

    def _on_offer(self) -> int:
        waiting = ("armed", "yielded")
        return sum(grant.block.nbytes for grant in self._out if grant.state in waiting)

    def _peaks_clash(self, wanted: int) -> bool:
        """Whether training's peak, and what the worker holds and wants, exceed the device."""
        if self.short:
            return True
        free, device = self._allocator.device_memory()
        others = max(device - free - self._allocator.reserved(), 0)
        peak = self._allocator.peak()
        if peak + others + wanted <= device:
            return False
        self.short = True
        log.info(
            "memory of training (%d MB at its peak) and GPU worker (%d MB, and %d MB wanted) does "
            "not fit on the device together: training lends what it does not use while it waits",
            *(nbytes >> 20 for nbytes in (peak, others, wanted)),
        )
        return True

    # ---- taking back ---------------------------------------------------------------------------

    def take_back(self, worker: Process | None) -> bool:
        """Takes everything back: asks, waits, then kills the worker; returns whether it did that.

        It waits longer the next time, up to a bound. Where that did not suffice either, nothing is
        lent any more. Under CUDA's MPS no client may be killed: what is not returned then stays out
        of training's use until it is.

        Args:
            worker: that has what is out; ``None`` if it is known to have ended.
        """
        self._nothing_left = False
        if not self._out or self._session is None:
            return False
        seconds, asked = self._patience.seconds, time.monotonic()
        if self._reclaim(seconds):
            self._patience.returned(time.monotonic() - asked)
            return False
        if worker is None or under_mps():
            return False
        text = f"the GPU worker did not return memory within {seconds * 1000:.0f} ms"
        log.warning("%s and is killed", text)
        worker.kill()
        worker.join(_ENDING_SECONDS)
        self._kills += 1
        self._reclaim(seconds)
        if not self._patience.overdue():
            self._decline(text)
        return True

    def _reclaim(self, patience: float) -> bool:
        """Returns whether all is back; what is back is the allocator's again."""
        assert self._session is not None
        try:
            self._session.lender.reclaim(self._out, patience, "quarantine")
        except NotReturnedError as overdue:
            log.debug("%s", overdue)
        kept = []
        for grant in self._out:
            if grant.state == "free":
                self._allocator.give(grant.block.address)
            else:
                kept.append(grant)
        self._out = kept
        return not kept

    def _end_session(self) -> None:
        self.take_back(None)
        session, self._session = self._session, None
        if session is not None:
            self._before.update(_counts(session))
            session.end(self._allocator.capturing())

    # ---- the rest ------------------------------------------------------------------------------

    def stats(self) -> dict[str, object]:
        """Returns what ``FusionLoader.stats()`` says of it, in bytes since the loader was made."""
        counts = self._before.copy()
        if self._session is not None:
            counts.update(_counts(self._session))
        return {
            "why_not": self.why_not,
            "short": self.short,
            "lent_bytes": counts["lent_ever"],
            "borrowed_bytes": counts["borrowed_ever"],
            "revoked_bytes": counts["revoked_ever"],
            "kills": self._kills,
            "patience_seconds": self._patience.seconds,
        }

    def close(self) -> None:
        """Takes everything back from a worker that has ended."""
        self._end_session()

    def _decline(self, why: str) -> None:
        """Lends nothing more; what is out comes back as always."""
        if self.why_not is None:
            self.why_not = why
            self._say_off()
        self._nothing_left = True

    def _say_off(self) -> None:
        level = logging.WARNING if self._options.always else logging.INFO  # where it was asked for
        log.log(level, "training lends the GPU worker no memory: %s", self.why_not)


def _counts(session: _Session) -> dict[str, int]:
    probed = asdict(session.probed)
    counts = asdict(session.lender.stats()) if session.proven else probed
    return {name: counts[name] - probed[name] for name in counts if name.endswith("_ever")}


class _Session:
    """The ledger of one worker process, and whether that process can open training's memory.

    That is tried when the worker first wants memory, by training itself, while it waits for a
    batch: a thread would not know when training captures a CUDA graph.

    Attributes:
        lender: training's end of the ledger.
        probed: counts of what the probe has lent, which is not for the worker's use.
        proven: whether the worker has opened a block.
        refused: why it cannot, in words, once that is known.
    """

    def __init__(self, device: int) -> None:
        self.lender = Lender()
        self.probed: LendingStats = self.lender.stats()
        self.proven = False
        self.refused: str | None = None
        self._device = device
        self._probe: Probe | None = None

    def prove(self) -> bool:
        """Goes on with the probe, without waiting for the worker; returns whether it is proven."""
        if self.proven or self.refused is not None:
            return self.proven
        try:
            if self._probe is None:
                self._probe = Probe(self.lender, self._device, _PROBE_SECONDS)
            if not self._probe.is_over():
                return False
            self.refused = self._probe.refused
        except MemorySharingError as error:
            self.refused = str(error)
        self._probe = None
        self.probed = self.lender.stats()
        self.proven = self.refused is None
        return self.proven

    def end(self, capturing: bool) -> None:
        """The worker has ended, and what was lent to it is back."""
        with suppress(MemorySharingError):  # with a process that is stuck in the kernel
            if self._probe is not None and not capturing:  # 2 MiB are lost sooner than a capture
                self._probe.end()
            self.lender.close(when_overdue="quarantine")
