"""Torch's caching allocator in the training process, which holds the memory that is lent."""

from __future__ import annotations

import os

import torch

from fusionloader.scheduler.memory_lending import Snapshot


class TorchAllocator:
    """Stock torch's caching allocator of one device, by its public functions."""

    def __init__(self, device: int) -> None:
        self._device = device

    def refusal(self) -> str | None:
        """Returns why its memory can never be lent, in words; ``None`` if it can.

        Expandable segments show only in a snapshot.
        """
        backend = torch.cuda.get_allocator_backend()
        if backend != "native":
            return f"CUDA IPC cannot share memory of torch's allocator backend {backend!r}"
        if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING", "0") != "0":
            return "caching is turned off by PYTORCH_NO_CUDA_MEMORY_CACHING: nothing lies idle"
        return None

    def capturing(self) -> bool:
        """Whether what is allocated now becomes part of a CUDA graph."""
        return torch.cuda.is_current_stream_capturing()

    def snapshot(self) -> Snapshot:
        """Returns its segments and blocks."""
        try:  # without the history that a user may be recording
            return torch.cuda.memory_snapshot(include_traces=False)  # type: ignore[no-untyped-call,no-any-return]
        except TypeError:  # before torch 2.10
            return torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call,no-any-return]

    def take(self, nbytes: int, stream: int) -> int:
        """Returns the address of ``nbytes`` for a stream.

        Raises:
            RuntimeError: there is no room for them.
        """
        return int(torch.cuda.caching_allocator_alloc(nbytes, self._device, stream))

    def give(self, address: int) -> None:
        """Frees what ``take`` returned."""
        torch.cuda.caching_allocator_delete(address)  # type: ignore[no-untyped-call]

    def reserved(self) -> int:
        """Bytes of the device that it holds, in use or not."""
        return torch.cuda.memory_reserved(self._device)

    def peak(self) -> int:
        """Bytes that it held at most."""
        return torch.cuda.max_memory_reserved(self._device)

    def device_memory(self) -> tuple[int, int]:
        """Free bytes of the device, and all of them."""
        return torch.cuda.mem_get_info(self._device)
