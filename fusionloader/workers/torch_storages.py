"""torch's shared tensors in memory without names, for workers that send tensors torch's way.

torch takes a file of ``/dev/shm`` for each storage that it sends, and a write to one raises SIGBUS
when that is full. Here the memory comes from ``shm.objects``, and too little of it is an exception.
The receiver is torch's own code: it maps whatever descriptor it gets.
"""

from __future__ import annotations

import os
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import get_sharing_strategy, reductions

from fusionloader.shm import objects


def use_anonymous_memory() -> None:
    """Has torch share tensors of this process through memory without names, from now on.

    Where the user has chosen the sharing strategy ``file_system``, it stays torch's.
    """
    strategy: Any = get_sharing_strategy
    if strategy() != "file_descriptor":
        return
    original: Any = torch.UntypedStorage._new_shared

    def new_shared(cls: Any, size: int, *, device: Any = "cpu") -> Any:
        is_host = torch.device(device).type == "cpu" and size > 0
        return _storage(size) if is_host else original(size, device=device)

    replaced: Any = classmethod(new_shared)
    torch.UntypedStorage._new_shared = replaced  # type: ignore[method-assign]
    ForkingPickler.register(torch.UntypedStorage, _reduced)


def _storage(nbytes: int) -> torch.UntypedStorage:
    """Returns a fresh storage that other processes can map.

    Raises:
        SharedMemoryExhausted: there is no memory for it.
    """
    fd = objects.create(nbytes, "tensor")
    try:
        objects.reserve(fd, 0, nbytes)
        storage: Any = torch.UntypedStorage
        return storage._new_shared_fd_cpu(fd, nbytes)  # type: ignore[no-any-return]
    finally:
        os.close(fd)  # torch has its own


def _reduced(storage: torch.UntypedStorage) -> Any:
    if storage.device.type == "cpu" and storage.nbytes() and not storage.is_shared():
        try:
            shared = _storage(storage.nbytes())
        except objects.SharedMemoryExhausted as error:
            # Raised where it is received: a queue's thread would drop the batch without a word.
            return _refuse, (str(error),)
        shared.copy_(storage, non_blocking=False)
        storage = shared
    reduce: Any = reductions.reduce_storage
    return reduce(storage)


def _refuse(why: str) -> None:
    raise objects.SharedMemoryExhausted(why)
