"""Allocating within borrowed blocks, also for ``torch.cuda.memory.CUDAPluggableAllocator``.

One pool per process. Torch loads the entry points from the extension itself:

    allocator = CUDAPluggableAllocator(pool.LIBRARY, pool.MALLOC, pool.FREE)
    with torch.cuda.use_mem_pool(torch.cuda.MemPool(allocator.allocator())):
        ...

Torch keeps what it got until ``MemPool`` is gone and ``torch.cuda.empty_cache()`` was called; then
``live_bytes`` says whether a block can be removed.
"""

from __future__ import annotations

from fusionloader import _native
from fusionloader._native import cuda as native
from fusionloader.system.gpu_memory.borrower import Mapping

__all__ = [
    "FREE",
    "LIBRARY",
    "MALLOC",
    "RETIRE",
    "add",
    "freeze",
    "is_empty",
    "live_bytes",
    "remove",
    "settle",
]

LIBRARY: str = _native.__file__
MALLOC = "fl_pool_malloc"
FREE = "fl_pool_free"
# Frees in the order of a stream, for allocators that do: ``settle`` makes the room free again, and
# so does an allocation that finds none.
RETIRE = "fl_pool_retire"


def add(mapping: Mapping) -> None:
    """Lets the pool allocate within a borrowed block, which must not be returned meanwhile.

    Raises:
        GrantError: it is in the pool already, or was returned.
        SizeError: it has no room for a single allocation.
    """
    native.pool().add(mapping.address, mapping.nbytes, mapping.device)


def freeze(mapping: Mapping, frozen: bool = True) -> None:
    """While frozen the block gives nothing any more: what is revoked can empty.

    Raises:
        GrantError: it is not in the pool.
    """
    native.pool().freeze(mapping.address, frozen)


def settle() -> None:
    """Waits for the device's work in what was retired, which is free then.

    Raises:
        CudaError: the device is lost; nothing is free.
    """
    native.settle_pool()


def remove(mapping: Mapping) -> None:
    """Takes a block out of the pool, so that it can be returned.

    Raises:
        GrantError: it is not in the pool, or something in it is allocated still.
    """
    native.pool().remove(mapping.address)


def is_empty() -> bool:
    """Whether there is no block in the pool."""
    return native.pool().is_empty()


def live_bytes(mapping: Mapping | None = None) -> int:
    """Returns how much is allocated now, in a block or in all.

    Raises:
        GrantError: it is not in the pool.
    """
    if mapping is None:
        return native.pool().live_bytes()
    return native.pool().live_bytes(mapping.address)
