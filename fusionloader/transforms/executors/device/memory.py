"""Memory by its address, of the host or of a device: rows of batches and working memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

__all__ = ["Memory", "allocate_on_host", "allocator_of_torch", "of_buffer", "of_tensor"]

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


@dataclass(frozen=True, slots=True)
class Memory:
    """A range of memory.

    Attributes:
        address: address of the first byte, on the host or on a device.
        nbytes: number of bytes.
        owner: object that keeps the memory alive.
    """

    address: int
    nbytes: int
    owner: object = field(repr=False, compare=False, default=None)

    def part(self, begin: int, nbytes: int) -> Memory:
        """Returns the ``nbytes`` bytes from offset ``begin`` on.

        Raises:
            ValueError: they are not within this memory.
        """
        if begin < 0 or nbytes < 0 or begin + nbytes > self.nbytes:
            raise ValueError(f"bytes {begin} to {begin + nbytes} of {self.nbytes}")
        return Memory(self.address + begin, nbytes, self.owner)


def of_buffer(buffer: Any) -> Memory:
    """Returns the memory of a writable Python buffer."""
    array = np.frombuffer(buffer, np.uint8)
    return Memory(array.ctypes.data, array.nbytes, array)


def of_tensor(tensor: Any) -> Memory:
    """Returns the memory of a contiguous torch tensor on any device."""
    return Memory(tensor.data_ptr(), tensor.nbytes, tensor)


def allocate_on_host(nbytes: int) -> Memory:
    """Returns new memory, aligned to 16 bytes."""
    return of_buffer(np.empty((nbytes + 15) // 16, np.complex128)).part(0, nbytes)


def allocator_of_torch(stream: torch.cuda.Stream) -> Callable[[int], Memory]:
    """Returns a function that allocates device memory through torch, for use on a stream.

    Torch may return memory of the current stream that queued work still uses. It is safe to use
    only behind that work, on the same stream. So the stream is made the current one while memory is
    allocated.
    """
    import torch

    def allocate(nbytes: int) -> Memory:
        with torch.cuda.stream(stream):
            return of_tensor(torch.empty(nbytes, dtype=torch.uint8, device=stream.device))

    return allocate
