"""Borrowed blocks as memory for torch's allocations, by stock torch's own means, and for DALI's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from fusionloader.executors.dali.memory import borrowing
from fusionloader.executors.device.release_blocks import release_blocks
from fusionloader.gpu_memory import Mapping, pool


class TorchPool:
    """Serves torch's allocations of one thread on a device; see ``launch_memory.MemoryPool``.

    Torch caches what it gets, in a ``MemPool``: there is one for each time that blocks are
    borrowed, since only with its end does everything in it come back. DALI's allocations are
    served in any thread, where ``dali.borrowing`` can be installed.
    """

    def __init__(self, device: int) -> None:
        borrowing.install(device)
        self._device = device
        self._allocator: Any = None
        self._pool: Any = None
        self._blocks: list[Mapping] = []

    def own(self, in_vain: bool = False) -> AbstractContextManager[None]:
        """See ``launch_memory.MemoryPool``."""
        return borrowing.in_vain() if in_vain else nullcontext()

    def begin(self, blocks: Sequence[Mapping]) -> None:
        """See ``launch_memory.MemoryPool``."""
        import torch

        if self._allocator is None:  # kept: torch refers to it for as long as the process lives
            self._allocator = torch.cuda.memory.CUDAPluggableAllocator(
                pool.LIBRARY, pool.MALLOC, pool.FREE
            )
        for block in blocks:
            pool.add(block)
            self._blocks.append(block)
        self._pool = torch.cuda.MemPool(self._allocator.allocator())

    def borrowed(self) -> AbstractContextManager[None]:
        """See ``launch_memory.MemoryPool``."""
        import torch

        return torch.cuda.use_mem_pool(self._pool, self._device)

    def end(self) -> None:
        """See ``launch_memory.MemoryPool``."""
        import torch

        torch.cuda.synchronize(self._device)
        self._pool = None
        release_blocks(self._blocks, torch.cuda.empty_cache)
        self._blocks.clear()

    def trim(self) -> None:
        """See ``launch_memory.MemoryPool``; also frees what DALI's pipelines no longer use."""
        import torch

        from fusionloader.executors.dali.memory.unused_memory import release_unused_memory

        torch.cuda.empty_cache()
        release_unused_memory()
