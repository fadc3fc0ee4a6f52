"""Memory for decoded images, used again."""

from __future__ import annotations

import threading
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_GRAIN = 1 << 16  # sizes are rounded up to these, so that alike images find the same blocks


class BufferPool:
    """Blocks of uint8 memory on one device; what is used again is what was given back last.

    May be used by several threads. A block that is never given back is freed with its last tensor.
    """

    def __init__(self, device: int | None, most_free: int) -> None:
        """Keeps ``most_free`` blocks that are free, the largest ones.

        Args:
            device: index of a CUDA device, ``None`` for the CPU's memory.
            most_free: how many are in use at a time, at most.
        """
        self._device = "cpu" if device is None else f"cuda:{device}"
        self._most_free = most_free
        self._free: list[torch.Tensor] = []
        self._lock = threading.Lock()

    def take(self, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a tensor of that shape, and its block, which is to be given back.

        Raises:
            RuntimeError: there is no memory left.
        """
        nbytes = prod(shape)
        block = self._recycled(nbytes)
        if block is None:
            import torch

            size = max(-(-nbytes // _GRAIN), 1) * _GRAIN
            block = torch.empty(size, dtype=torch.uint8, device=self._device)
        return block[:nbytes].view(shape), block

    def _recycled(self, nbytes: int) -> torch.Tensor | None:
        with self._lock:
            for place in range(len(self._free) - 1, -1, -1):
                if self._free[place].nbytes >= nbytes:
                    return self._free.pop(place)
        return None

    def give_back(self, block: torch.Tensor) -> None:
        """Makes a block free: nobody reads or writes it any more."""
        with self._lock:
            self._free.append(block)
            if len(self._free) > self._most_free:
                smallest = min(range(len(self._free)), key=lambda place: self._free[place].nbytes)
                del self._free[smallest]
