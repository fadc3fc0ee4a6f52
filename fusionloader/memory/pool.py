"""Allocating within borrowed blocks, also for ``torch.cuda.memory.CUDAPluggableAllocator``.

One pool per process. Torch is to load the entry points from ``LIBRARY``:

    allocator = CUDAPluggableAllocator(LIBRARY, MALLOC, FREE)
    pool = torch.cuda.MemPool(allocator.allocator())
"""

from __future__ import annotations

from fusionloader import _native
from fusionloader.memory.borrower import Mapping

LIBRARY = _native.__file__
MALLOC, FREE = "fl_pool_malloc", "fl_pool_free"


def add(mapping: Mapping) -> None:
    """Lets the pool allocate within a borrowed block."""
    raise NotImplementedError


def remove(mapping: Mapping) -> None:
    """Takes a block out of the pool, so that it can be returned.

    Raises:
        GrantError: it is not in the pool, or something in it is still allocated.
    """
    raise NotImplementedError


def freeze(frozen: bool) -> None:
    """While frozen the pool allocates nothing: what is revoked should empty."""
    raise NotImplementedError


def live_bytes() -> int:
    """Returns how much is allocated now."""
    raise NotImplementedError
