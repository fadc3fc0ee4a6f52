"""Which free blocks of torch's caching allocator may be lent: decided from a snapshot alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

SMALLEST = 4 << 20
# Smaller requests go to another pool of the allocator: a block can be claimed by its size only
# above this.
_SMALL_POOL = 1 << 20
_DEFAULT_POOL = (0, 0)
_MOST_PATIENCE = 8  # times the initial seconds


class CachedBlock(TypedDict):
    """A block of a segment; ``state`` is ``"inactive"`` where it is free."""

    size: int
    state: str


class _Segment(TypedDict):
    device: int
    address: int
    total_size: int
    stream: int
    blocks: Sequence[CachedBlock]


class Segment(_Segment, total=False):
    """Memory that the allocator got from the device at once; old versions of torch say less."""

    segment_pool_id: Sequence[int]
    is_expandable: bool


Snapshot = Sequence[Segment]
"""What ``torch.cuda.memory_snapshot()`` returns."""


@dataclass(frozen=True, slots=True)
class MemoryClaim:
    """A block that the allocator holds but does not use.

    Attributes:
        address: on the device.
        size: in bytes. The allocator gives out this very block, or another one of the same size
            and stream, for a request of exactly so many bytes on its stream.
        stream: whose free list it is in, as a raw ``cudaStream_t``.
        whole_segment: whether nothing else lies in its segment. CUDA shares whole segments:
            writes beyond the end of such a block damage no other.
    """

    address: int
    size: int
    stream: int
    whole_segment: bool


def candidates(
    snapshot: Snapshot,
    *,
    device: int = 0,
    smallest: int = SMALLEST,
) -> list[MemoryClaim]:
    """Returns the blocks that may be lent, largest first, whole segments first among equals.

    Only inactive blocks of the default pool. Free memory of other pools is not free: the CUDA
    graph that a pool belongs to writes there when it is replayed. Expandable segments are no
    single allocation, which is what CUDA IPC shares; a snapshot that does not say whether a
    segment is one gives none.

    Args:
        snapshot: of all devices.
        device: index of the one that counts.
        smallest: block in bytes, more than 1 MiB.

    Raises:
        ValueError: ``smallest`` is within what the allocator's pool for small requests serves.
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
    snapshot: Snapshot,
    limit: int,
    *,
    device: int = 0,
    smallest: int = SMALLEST,
) -> list[MemoryClaim]:
    """Returns the blocks to lend: the largest ones that together stay within ``limit`` bytes.

    Blocks are lent as they are, so that one that would go beyond the limit is passed over for
    smaller ones. See ``candidates`` for the rest.
    """
    chosen, left = [], limit
    for claim in candidates(snapshot, device=device, smallest=smallest):
        if claim.size <= left:
            chosen.append(claim)
            left -= claim.size
    return chosen


def only_expandable(snapshot: Snapshot, *, device: int = 0) -> bool:
    """Whether all memory of the default pool of a device is in expandable segments."""
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
    """Grows with the time that returning memory takes, up to eight times what it begins with.

    Waiting costs training milliseconds, killing costs it the worker for the seconds of its start.
    It never shrinks: where memory is returned sooner, nothing is waited for.

    Attributes:
        seconds: to wait now.
    """

    def __init__(self, seconds: float) -> None:
        """Begins with so many seconds."""
        self.seconds = seconds
        self._most = _MOST_PATIENCE * seconds

    def returned(self, seconds: float) -> None:
        """Learns that returning everything took so long: it may take twice that."""
        self.seconds = min(max(self.seconds, 2 * seconds), self._most)

    def overdue(self) -> bool:
        """Learns that the time did not suffice; returns whether there is more."""
        if self.seconds >= self._most:
            return False
        self.seconds = min(2 * self.seconds, self._most)
        return True


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
