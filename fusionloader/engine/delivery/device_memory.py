"""Memory of a CUDA device that another process can open.

Memory of torch's allocator can only be shared by torch itself, and not with expandable segments.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from fusionloader._native import cuda as native
from fusionloader.system.gpu_memory.errors import MemorySharingError


class DeviceMemory:
    """``nbytes`` at ``address`` of device number ``device``, freed with the last reference."""

    def __init__(self, device: int, nbytes: int) -> None:
        """Allocates the memory.

        Raises:
            CudaError: the driver refuses; its ``code`` is 2 if the device has too little memory.
        """
        self.device, self.nbytes = device, nbytes
        self.address = native.allocate(device, nbytes)
        self._pid = os.getpid()

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        # ``getpid`` is an argument because Python may have cleared this module by then.
        if getattr(self, "_pid", None) == getpid():  # in a forked child it belongs to the parent
            with suppress(MemorySharingError):  # the device has failed, and its memory is gone
                native.free(self.device, self.address)

    def handle(self) -> tuple[int, bytes, int]:
        return self.device, native.export_handle(self.device, self.address), self.nbytes

    def tensor(self) -> torch.Tensor:
        """Returns a uint8 tensor over the memory, which keeps the memory alive."""
        with torch.inference_mode(False):  # it is reused, also outside of that mode
            return torch.as_tensor(self, device=f"cuda:{self.device}")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return _interface(self.address, self.nbytes)


class _OpenMemory:
    """Memory of another process, which stays open until this one ends."""

    def __init__(self, device: int, handle: bytes, nbytes: int) -> None:
        self._interface = _interface(native.open_handle(device, handle), nbytes)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._interface


def open_memory(device: int, handle: bytes, nbytes: int) -> torch.Tensor:
    """Returns another process's memory as a uint8 tensor.

    Raises:
        CudaError: it cannot be opened, as under MIG, in gVisor and across PID namespaces.
    """
    return torch.as_tensor(_OpenMemory(device, handle, nbytes), device=f"cuda:{device}")


def _interface(address: int, nbytes: int) -> dict[str, Any]:
    return {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}
