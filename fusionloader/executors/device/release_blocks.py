"""Borrowed blocks made empty, so that they can be returned."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

from fusionloader.executors.dali.prebuilt import drop_all
from fusionloader.gpu_memory import Mapping, pool


def release_blocks(blocks: Sequence[Mapping], empty_cache: Callable[[], None]) -> None:
    """Takes blocks out of the pool, once nothing in them is allocated or used by the device.

    ``empty_cache`` gives the pool what is cached of it. What lives in a block until its owner is
    gone is let go of, in the order of what it costs: training waits meanwhile.

    Raises:
        RuntimeError: something is allocated nevertheless, and no block may be returned.
        CudaError: the device is lost, likewise.
    """
    for block in blocks:  # DALI's threads would go on allocating
        pool.freeze(block)
    for let_go in (_nothing, drop_all, gc.collect):
        let_go()
        empty_cache()
        pool.settle()
        if not pool.live_bytes():
            break
    else:
        raise RuntimeError(f"{pool.live_bytes()} bytes are still allocated in borrowed memory")
    for block in blocks:
        pool.remove(block)


def _nothing() -> None:
    """What suffices most of the time."""
