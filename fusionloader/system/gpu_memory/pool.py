"""Allocates within borrowed blocks, also for ``torch.cuda.memory.CUDAPluggableAllocator``.

There is one pool per process. Torch loads the entry points from the extension:

    allocator = CUDAPluggableAllocator(pool.LIBRARY, pool.MALLOC, pool.FREE)
    with torch.cuda.use_mem_pool(torch.cuda.MemPool(allocator.allocator())):
        ...

Torch keeps its allocations until the ``MemPool`` was freed and ``torch.cuda.empty_cache()`` called;
after that, ``live_bytes`` says whether a block can be removed.
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
# Frees in stream order. The memory is available after ``settle``, or after an allocation that finds
# no other.
RETIRE = "fl_pool_retire"


def add(mapping: Mapping) -> None:
    """Adds a borrowed block to the pool. It must not be returned before it is removed.

    Raises:
        GrantError: the block is in the pool already, or was returned.
        SizeError: it is too small for a single allocation.
    """
    native.pool().add(mapping.address, mapping.nbytes, mapping.device)


def freeze(mapping: Mapping, frozen: bool = True) -> None:
    """Stops new allocations in a block, so that a revoked block becomes empty.

    Raises:
        GrantError: the block is not in the pool.
    """
    native.pool().freeze(mapping.address, frozen)


def settle() -> None:
    """Waits for the device's work on retired memory, and frees that memory.

    Raises:
        CudaError: the device has failed; nothing is freed.
    """
    native.settle_pool()


def remove(mapping: Mapping) -> None:
    """Removes a block from the pool, so that it can be returned.

    Raises:
        GrantError: the block is not in the pool, or has live allocations.
    """
    native.pool().remove(mapping.address)


def is_empty() -> bool:
    """Whether there is no block in the pool."""
    return native.pool().is_empty()


def live_bytes(mapping: Mapping | None = None) -> int:
    """Returns the allocated bytes of a block, or of all blocks.

    Raises:
        GrantError: the block is not in the pool.
    """
    if mapping is None:
        return native.pool().live_bytes()
    return native.pool().live_bytes(mapping.address)
