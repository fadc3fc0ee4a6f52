"""Torch's caching allocator in the training process, whose unused memory is lent."""

from __future__ import annotations

import os

import torch

from fusionloader.scheduler.memory_lending import Snapshot


class TorchAllocator:
    """Torch's caching allocator of one device, accessed through its public functions."""

    def __init__(self, device: int) -> None:
        self._device = device

    def refusal(self) -> str | None:
        """Returns the reason if its memory can never be lent; ``None`` if it can.

        Expandable segments are not detected here; they show only in a snapshot.
        """
        backend = torch.cuda.get_allocator_backend()
        if backend != "native":
            return f"CUDA IPC cannot share memory of torch's allocator backend {backend!r}"
        if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING", "0") != "0":
            return "caching is turned off by PYTORCH_NO_CUDA_MEMORY_CACHING: nothing lies idle"
        return None

    def capturing(self) -> bool:
        """Whether the current stream is being captured into a CUDA graph."""
        return torch.cuda.is_current_stream_capturing()

    def snapshot(self) -> Snapshot:
        try:  # without the allocation history, which may be long
            return torch.cuda.memory_snapshot(include_traces=False)  # type: ignore[no-untyped-call,no-any-return]
        except TypeError:  # before torch 2.10
            return torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call,no-any-return]

    def take(self, nbytes: int, stream: int) -> int:
        """Allocates ``nbytes`` for a stream and returns their address.

        Raises:
            RuntimeError: not enough memory.
        """
        return int(torch.cuda.caching_allocator_alloc(nbytes, self._device, stream))

    def give(self, address: int) -> None:
        """Frees what ``take`` returned."""
        torch.cuda.caching_allocator_delete(address)  # type: ignore[no-untyped-call]

    def reserved(self) -> int:
        """Bytes of the device that the allocator holds, in use or not."""
        return torch.cuda.memory_reserved(self._device)

    def peak(self) -> int:
        """Largest value of ``reserved()`` so far, in bytes."""
        return torch.cuda.max_memory_reserved(self._device)

    def device_memory(self) -> tuple[int, int]:
        """Free and total bytes of the device."""
        return torch.cuda.mem_get_info(self._device)
