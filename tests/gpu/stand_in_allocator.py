"""A caching allocator like torch's over the fake driver's memory, for lending from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fusionloader import _native

MIB = 1 << 20
_GRAIN = 512


@dataclass
class Block:
    """A piece of a segment."""

    address: int
    size: int
    used: bool = False


@dataclass
class Segment:
    """What the device gave at once."""

    address: int
    stream: int
    size: int
    pool: tuple[int, int]
    expandable: bool
    blocks: list[Block] = field(default_factory=list)


class StandInAllocator:
    """Finds free blocks by stream and size, splits them, joins them when they are freed again.

    Attributes:
        looks: how many snapshots were taken.
        rounds_to: what sizes are rounded up to a multiple of.
        refuses: what ``refusal`` returns.
        captures: what ``capturing`` returns.
        device_bytes: free and all bytes of the device; ``None`` asks the driver for neither.
        highest: what ``peak`` returns if that is more than what was reserved so far.
    """

    def __init__(self, device_bytes: tuple[int, int] = (1 << 30, 1 << 30)) -> None:
        self.segments: list[Segment] = []
        self.looks = 0
        self.rounds_to = _GRAIN
        self.refuses: str | None = None
        self.captures = False
        self.device_bytes = device_bytes
        self.highest = 0

    # ---- what lending knows of it --------------------------------------------------------------

    def refusal(self) -> str | None:
        return self.refuses

    def capturing(self) -> bool:
        return self.captures

    def snapshot(self) -> list[dict[str, Any]]:
        self.looks += 1
        return [
            {
                "device": 0,
                "address": segment.address,
                "total_size": segment.size,
                "stream": segment.stream,
                "segment_pool_id": segment.pool,
                "is_expandable": segment.expandable,
                "blocks": [
                    {"size": block.size, "state": _STATES[block.used]} for block in segment.blocks
                ],
            }
            for segment in self.segments
        ]

    def take(self, nbytes: int, stream: int) -> int:
        size = -(-nbytes // self.rounds_to) * self.rounds_to
        while not (free := self._free(size, stream)):
            self.reserve(size, stream)
        _, address, block, segment = min(free, key=lambda found: found[:2])
        if block.size > size:
            at = segment.blocks.index(block)
            segment.blocks.insert(at + 1, Block(address + size, block.size - size))
            block.size = size
        block.used = True
        return address

    def _free(self, size: int, stream: int) -> list[tuple[int, int, Block, Segment]]:
        return [
            (block.size, block.address, block, segment)
            for segment in self.segments
            if segment.stream == stream and segment.pool == (0, 0)
            for block in segment.blocks
            if not block.used and block.size >= size
        ]

    def give(self, address: int) -> None:
        for segment in self.segments:
            for block in segment.blocks:
                if block.address == address and block.used:
                    block.used = False
                    self._join(segment)
                    return
        raise ValueError(f"{address:#x} is not in use")

    def reserved(self) -> int:
        return sum(segment.size for segment in self.segments)

    def peak(self) -> int:
        return max(self.highest, self.reserved())

    def device_memory(self) -> tuple[int, int]:
        return self.device_bytes

    # ---- what training does with it ------------------------------------------------------------

    def reserve(
        self, size: int, stream: int = 0, pool: tuple[int, int] = (0, 0), expandable: bool = False
    ) -> int:
        """Takes a segment from the device; returns its address."""
        address = _native.cuda.allocate(0, size)
        segment = Segment(address, stream, size, pool, expandable, [Block(address, size)])
        self.segments.append(segment)
        return address

    @property
    def used(self) -> set[int]:
        """Addresses of the blocks in use."""
        return {
            block.address for segment in self.segments for block in segment.blocks if block.used
        }

    def free_blocks(self) -> list[tuple[int, int]]:
        """Address and size of the others."""
        return [
            (block.address, block.size)
            for segment in self.segments
            for block in segment.blocks
            if not block.used
        ]

    def close(self) -> None:
        """Frees all segments; aborts if another process has one open, as the fake driver does."""
        for segment in self.segments:
            _native.cuda.free(0, segment.address)
        self.segments.clear()

    def _join(self, segment: Segment) -> None:
        joined: list[Block] = []
        for block in segment.blocks:
            if joined and not joined[-1].used and not block.used:
                joined[-1].size += block.size
            else:
                joined.append(block)
        segment.blocks = joined


_STATES = {True: "active_allocated", False: "inactive"}
