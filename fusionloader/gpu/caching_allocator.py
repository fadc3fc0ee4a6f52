"""Training's allocator, as far as lending free memory of it needs to know it."""

from __future__ import annotations

import os
from typing import Protocol

import torch

from fusionloader.scheduler.claims import Snapshot


class Allocator(Protocol):
    """An allocator that caches what is freed, of one device."""

    def refusal(self) -> str | None:
        """Returns why its memory can never be lent, in words; ``None`` if it can."""

    def capturing(self) -> bool:
        """Whether what is allocated now becomes part of a CUDA graph."""

    def snapshot(self) -> Snapshot:
        """Returns its segments and blocks."""

    def take(self, nbytes: int, stream: int) -> int:
        """Returns the address of so many bytes for a stream.

        Raises:
            RuntimeError: there are none.
        """

    def give(self, address: int) -> None:
        """Frees what ``take`` returned."""

    def reserved(self) -> int:
        """Bytes of the device that it holds, in use or not."""

    def peak(self) -> int:
        """Bytes that it held at most."""

    def device_memory(self) -> tuple[int, int]:
        """Bytes of the device that nobody holds, and all of them."""


class TorchAllocator:
    """Stock torch's caching allocator, by its public functions; see ``Allocator``."""

    def __init__(self, device: int) -> None:
        self._device = device

    def refusal(self) -> str | None:
        """See ``Allocator``; expandable segments show only in a snapshot."""
        backend = torch.cuda.get_allocator_backend()
        if backend != "native":
            return f"CUDA IPC cannot share memory of torch's allocator backend {backend!r}"
        if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING", "0") != "0":
            return "caching is turned off by PYTORCH_NO_CUDA_MEMORY_CACHING: nothing lies idle"
        return None

    def capturing(self) -> bool:
        """See ``Allocator``."""
        return torch.cuda.is_current_stream_capturing()

    def snapshot(self) -> Snapshot:
        """See ``Allocator``."""
        try:  # without the history that somebody may be recording
            return torch.cuda.memory_snapshot(include_traces=False)  # type: ignore[no-untyped-call,no-any-return]
        except TypeError:  # before torch 2.10
            return torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call,no-any-return]

    def take(self, nbytes: int, stream: int) -> int:
        """See ``Allocator``."""
        return int(torch.cuda.caching_allocator_alloc(nbytes, self._device, stream))

    def give(self, address: int) -> None:
        """See ``Allocator``."""
        torch.cuda.caching_allocator_delete(address)  # type: ignore[no-untyped-call]

    def reserved(self) -> int:
        """See ``Allocator``."""
        return torch.cuda.memory_reserved(self._device)

    def peak(self) -> int:
        """See ``Allocator``."""
        return torch.cuda.max_memory_reserved(self._device)

    def device_memory(self) -> tuple[int, int]:
        """See ``Allocator``."""
        return torch.cuda.mem_get_info(self._device)
