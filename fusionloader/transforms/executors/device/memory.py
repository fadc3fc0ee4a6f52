"""Memory by its address: rows of batches and working memory, of the host or of a device alike."""

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
    """Some bytes.

    Attributes:
        address: of the first one; of the host or a device, as the user of it expects.
        nbytes: how many.
        owner: what they exist as long as.
    """

    address: int
    nbytes: int
    owner: object = field(repr=False, compare=False, default=None)

    def part(self, begin: int, nbytes: int) -> Memory:
        """Returns ``nbytes`` of it, from byte ``begin`` on.

        Raises:
            ValueError: it does not have them.
        """
        if begin < 0 or nbytes < 0 or begin + nbytes > self.nbytes:
            raise ValueError(f"bytes {begin} to {begin + nbytes} of {self.nbytes}")
        return Memory(self.address + begin, nbytes, self.owner)


def of_buffer(buffer: Any) -> Memory:
    """Returns the memory of a writable Python buffer of the host."""
    array = np.frombuffer(buffer, np.uint8)
    return Memory(array.ctypes.data, array.nbytes, array)


def of_tensor(tensor: Any) -> Memory:
    """Returns the memory of a contiguous torch tensor, of any device."""
    return Memory(tensor.data_ptr(), tensor.nbytes, tensor)


def allocate_on_host(nbytes: int) -> Memory:
    """Returns fresh memory that begins at a multiple of 16."""
    return of_buffer(np.empty((nbytes + 15) // 16, np.complex128)).part(0, nbytes)


def allocator_of_torch(stream: torch.cuda.Stream) -> Callable[[int], Memory]:
    """Returns what allocates through torch, for use on a stream, so that it can be borrowed memory.

    Torch hands out at once what was freed last on the stream that is current, where work that uses
    it may still be queued. Nothing but that order protects it, so it is that stream's for which
    memory is asked.
    """
    import torch

    def allocate(nbytes: int) -> Memory:
        with torch.cuda.stream(stream):
            return of_tensor(torch.empty(nbytes, dtype=torch.uint8, device=stream.device))

    return allocate
