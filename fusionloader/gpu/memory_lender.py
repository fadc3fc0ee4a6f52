"""Training lends its GPU worker memory while ``next()`` waits, and takes it back before it returns.

Training lends blocks that its allocator holds but does not use. It claims them from the allocator,
which can neither hand them out nor free them meanwhile. It gives them back to the allocator when
the borrower has returned them, or was killed.
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

# Time for a killed process to end. A process that is stuck in the kernel keeps its blocks.
_ENDING_SECONDS = 10.0
# Time for the worker to answer the probe, which it does between two launches.
_PROBE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """Options for lending memory to a GPU worker.

    Attributes:
        device: CUDA's device number.
        limit: bytes lent at a time, at most.
        always: whether to lend whenever the worker wants memory; otherwise only if the peaks of
            training and worker do not fit on the device together.
        allocator: training's allocator, which holds the memory.
        pool: makes the worker's memory pool, in the worker's process.
        patience: initial time for the worker to return memory, in seconds.
    """

    device: int
    limit: int
    always: bool
    allocator: TorchAllocator
    pool: Callable[[], TorchPool]
    patience: float = PATIENCE


class MemoryLender:
    """Lends memory to one GPU worker at a time.

    Attributes:
        short: whether memory was found not to suffice for training and the worker together.
        why_not: why nothing is lent; ``None`` while lending is possible.
    """

    def __init__(self, options: MemoryOptions) -> None:
        self._options = options
        self._allocator = options.allocator
        self._session: _Session | None = None
        self._out: list[Grant] = []  # grants that have not been taken back
        self._nothing_left = False
        self._before: Counter[str] = Counter()  # counts of former sessions
        self._patience = Patience(options.patience)
        self._kills = 0
        self.short = False
        self.why_not = self._allocator.refusal()
        if self.why_not is not None:
            self._say_off()

    def open_ledger(self) -> LedgerHandle | None:
        """Returns the ledger of a new worker, to be called when the former has ended.

        ``None`` if nothing can be lent.
        """
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
        """Lends the memory that the worker wants, as far as possible, while training waits.

        Costs one atomic load if the worker wants nothing.
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
        except RuntimeError as error:  # from the driver, the ledger or torch
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
        capacity = self._options.limit - sum(grant.block.nbytes for grant in self._out)
        self._nothing_left = True
        for claim in plan_claims(snapshot, capacity, device=device, smallest=USEFUL_BYTES):
            if wanted <= 0:
                self._nothing_left = False
                break
            address = allocator.take(claim.size, claim.stream)
            # The allocator returns another block if it rounds up, or another thread was faster.
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
        """Whether training's peak, the worker's memory and ``wanted`` exceed the device."""
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
        """Takes all lent memory back, and kills the worker if it does not return it in time.

        After a kill the patience grows, up to a bound; after another one at the bound nothing is
        lent any more. Under CUDA's MPS no client may be killed: training does without memory that
        was not returned until it is.

        Args:
            worker: process that holds the memory; ``None`` if it has ended.

        Returns:
            Whether the worker was killed.
        """
        self._nothing_left = False
        if not self._out or self._session is None:
            return False
        seconds, began = self._patience.seconds, time.monotonic()
        if self._reclaim(seconds):
            self._patience.returned(time.monotonic() - began)
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
        """Gives returned blocks to the allocator; returns whether all are back."""
        assert self._session is not None
        try:
            self._session.lender.reclaim(self._out, patience, "quarantine")
        except NotReturnedError as overdue:
            log.debug("%s", overdue)
        overdue_grants = []
        for grant in self._out:
            if grant.state == "free":
                self._allocator.give(grant.block.address)
            else:
                overdue_grants.append(grant)
        self._out = overdue_grants
        return not overdue_grants

    def _end_session(self) -> None:
        self.take_back(None)
        session, self._session = self._session, None
        if session is not None:
            self._before.update(_counts(session))
            session.end(self._allocator.capturing())

    # ---- the rest ------------------------------------------------------------------------------

    def stats(self) -> dict[str, object]:
        """Returns an entry of ``FusionLoader.stats()``, in bytes since the loader was made."""
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
        """Takes all memory back from a worker that has ended."""
        self._end_session()

    def _decline(self, why: str) -> None:
        """Ends lending; memory that is lent now is taken back as always."""
        if self.why_not is None:
            self.why_not = why
            self._say_off()
        self._nothing_left = True

    def _say_off(self) -> None:
        level = logging.WARNING if self._options.always else logging.INFO  # "always" is explicit
        log.log(level, "training lends the GPU worker no memory: %s", self.why_not)


def _counts(session: _Session) -> dict[str, int]:
    probed = asdict(session.probed)
    counts = asdict(session.lender.stats()) if session.proven else probed
    return {name: counts[name] - probed[name] for name in counts if name.endswith("_ever")}


class _Session:
    """The ledger of one worker process, and a probe whether it can open training's memory.

    The probe runs when the worker first wants memory, in the training thread while it waits for a
    batch. Another thread would not know when training captures a CUDA graph.

    Attributes:
        lender: training's end of the ledger.
        probed: counts of the probe's own lending, which is not for the worker's use.
        proven: whether the worker has opened a block.
        refused: why the worker cannot open a block; ``None`` while that is unknown or it can.
    """

    def __init__(self, device: int) -> None:
        self.lender = Lender()
        self.probed: LendingStats = self.lender.stats()
        self.proven = False
        self.refused: str | None = None
        self._device = device
        self._probe: Probe | None = None

    def prove(self) -> bool:
        """Advances the probe without waiting for the worker; returns ``proven``."""
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
        """Closes the ledger of a worker that has ended, after its memory was taken back."""
        with suppress(MemorySharingError):  # raised if the process is stuck in the kernel
            # Ending the probe would break a capture; losing its 2 MiB is the lesser evil.
            if self._probe is not None and not capturing:
                self._probe.end()
            self.lender.close(when_overdue="quarantine")
