"""Memory of a CUDA device that another process can open.

What torch allocates can be shared by torch's own means alone, and not where segments expand.
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
        """Allocates.

        Raises:
            CudaError: what the driver says; its ``code`` is 2 where there is no room.
        """
        self.device, self.nbytes = device, nbytes
        self.address = native.allocate(device, nbytes)
        self._pid = os.getpid()

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        # A default argument: Python may have cleared modules by then.
        if getattr(self, "_pid", None) == getpid():  # in a forked child it is the parent's
            with suppress(MemorySharingError):  # the device is lost, and its memory with it
                native.free(self.device, self.address)

    def handle(self) -> tuple[int, bytes, int]:
        """Returns what ``open_memory`` opens it with in another process."""
        return self.device, native.export_handle(self.device, self.address), self.nbytes

    def tensor(self) -> torch.Tensor:
        """Returns it as a uint8 tensor, which keeps it."""
        with torch.inference_mode(False):  # it is used again, outside of that mode, too
            return torch.as_tensor(self, device=f"cuda:{self.device}")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """By which torch makes a tensor over it."""
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
