"""The current CUDA device, which each thread has for itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def numbered(device: torch.device | str | int | None) -> torch.device | str | int | None:
    """Returns ``device`` with the number of this thread's current one, if it is a bare "cuda"."""
    import torch

    if device is None or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return device
    if torch.device(device) != torch.device("cuda"):
        return device
    return torch.device("cuda", torch.cuda.current_device())


def device_for_threads() -> Callable[[], None]:
    """Returns a function that gives another thread this thread's current device.

    Each thread begins with the first one. Before CUDA is initialized, this thread has it, too.
    The function does not raise: what uses a device that has failed does.
    """
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return lambda: None
    number = torch.cuda.current_device()

    def set_device() -> None:
        with contextlib.suppress(RuntimeError):
            torch.cuda.set_device(number)

    return set_device
