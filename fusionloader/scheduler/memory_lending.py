"""Device memory that training lends: which blocks, for how long, and what fits on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

SMALLEST = 4 << 20  # bytes
# Bytes of the largest request that the allocator serves from its pool of small blocks: only above
# this can a block be claimed by its size.
_SMALL_POOL = 1 << 20
_DEFAULT_POOL = (0, 0)
_MOST_PATIENCE = 8  # times the initial time


class CachedBlock(TypedDict):
    """A block of a segment; ``state`` is ``"inactive"`` if it is free."""

    size: int
    state: str


class _Segment(TypedDict):
    device: int
    address: int
    total_size: int
    stream: int
    blocks: Sequence[CachedBlock]


class Segment(_Segment, total=False):
    """One allocation of device memory; old versions of torch do not report these fields."""

    segment_pool_id: Sequence[int]
    is_expandable: bool


Snapshot = Sequence[Segment]
"""What ``torch.cuda.memory_snapshot()`` returns."""


@dataclass(frozen=True, slots=True)
class MemoryClaim:
    """A block that the allocator holds but does not use.

    Attributes:
        address: address on the device.
        size: size in bytes. For a request of exactly this size on its stream, the allocator returns
            this block, or another one of the same size and stream.
        stream: raw ``cudaStream_t`` whose free list the block is in.
        whole_segment: whether the block fills its segment. CUDA shares whole segments: writes
            beyond the end of such a block damage no other block.
    """

    address: int
    size: int
    stream: int
    whole_segment: bool


def candidates(
    snapshot: Snapshot, *, device: int = 0, smallest: int = SMALLEST
) -> list[MemoryClaim]:
    """Returns the blocks that may be lent, largest first, whole segments first among equals.

    Only inactive blocks of the default pool may be lent. A free block of another pool may still be
    written to: by the CUDA graph that owns the pool, when it is replayed. Expandable segments are
    left out because CUDA IPC shares single allocations, which they are not. So are segments of
    which the snapshot does not say whether they are expandable.

    Args:
        snapshot: snapshot of all devices.
        device: index of the device to look at.
        smallest: minimum size of a block in bytes, more than 1 MiB.

    Raises:
        ValueError: the allocator serves ``smallest`` from its pool of small blocks.
    """
    if smallest <= _SMALL_POOL:
        raise ValueError(f"blocks of {smallest} bytes cannot be claimed by their size")
    found = []
    for segment in snapshot:
        if not _lendable(segment, device):
            continue
        address, total = segment["address"], segment["total_size"]
        for block in segment["blocks"]:
            size = block["size"]
            whole = size == total
            if block["state"] == "inactive" and size >= smallest:
                found.append(MemoryClaim(address, size, segment["stream"], whole))
            address += size
    return sorted(found, key=lambda claim: (-claim.size, not claim.whole_segment, claim.address))


def plan_claims(
    snapshot: Snapshot, limit: int, *, device: int = 0, smallest: int = SMALLEST
) -> list[MemoryClaim]:
    """Returns the blocks to lend: the largest ones that together stay within ``limit`` bytes.

    Blocks are lent whole: one that would exceed the limit is skipped, and smaller ones are tried.
    The other arguments are those of ``candidates``.
    """
    chosen, left = [], limit
    for claim in candidates(snapshot, device=device, smallest=smallest):
        if claim.size <= left:
            chosen.append(claim)
            left -= claim.size
    return chosen


def only_expandable(snapshot: Snapshot, *, device: int = 0) -> bool:
    """Whether all memory in the default pool of a device is in expandable segments."""
    segments = [
        segment for segment in snapshot if segment["device"] == device and _in_default_pool(segment)
    ]
    return bool(segments) and all(segment.get("is_expandable", False) for segment in segments)


def _lendable(segment: Segment, device: int) -> bool:
    return (
        segment["device"] == device
        and _in_default_pool(segment)
        and segment.get("is_expandable") is False
    )


def _in_default_pool(segment: Segment) -> bool:
    pool = segment.get("segment_pool_id")
    return pool is not None and tuple(pool) == _DEFAULT_POOL


class Patience:
    """How long training waits for memory to be returned before it kills the worker that holds it.

    The time grows with the time that returns take, up to eight times its initial value. Waiting
    costs training milliseconds; killing costs it the worker until a new one has started, which
    takes seconds. The time never shrinks: training does not wait longer than the return takes.

    Attributes:
        seconds: current time to wait.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._most = _MOST_PATIENCE * seconds

    def returned(self, seconds: float) -> None:
        """Allows for twice the time, in seconds, that returning all memory took now."""
        self.seconds = min(max(self.seconds, 2 * seconds), self._most)

    def overdue(self) -> bool:
        """Doubles a time that did not suffice; returns ``False`` if it is at its maximum."""
        if self.seconds >= self._most:
            return False
        self.seconds = min(2 * self.seconds, self._most)
        return True


class MemoryPeaks:
    """Whether training and GPU worker fit on the device at their peaks (FusionFlow §5).

    Training measures both. Memory that is in use outside of its allocator belongs to the worker, to
    the contexts of both processes, or to other processes, which have to fit as well. The worker's
    allocators keep memory for the next launch, so that a measurement while it works shows its peak.
    That is the peak with one group: of a second one, beside training, only the pipeline is counted.

    Attributes:
        others: peak of the bytes in use outside of training's allocator.
    """

    def __init__(self) -> None:
        self.others = 0

    def observe(self, free: int, total: int, reserved: int) -> None:
        """Adds a measurement: bytes free, of the whole device, and in training's allocator."""
        self.others = max(self.others, total - free - reserved)

    def fit(self, training: int, total: int) -> bool:
        """Whether ``training`` bytes and the peak of the others fit into ``total`` bytes."""
        return training + self.others <= total
