"""Options of a validation: plain values, frozen, checked once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from fusionloader.options.aliases import AnyLoader, Batch

WhenBusy = Literal["wait", "skip"]

Evaluate = Callable[[nn.Module, Iterator[Batch]], Any]
"""Takes a model and batches, returns sums and counts or a metric (docs/scale/validation.md)."""

Replica = nn.Module | Callable[[], nn.Module]

_WHEN_BUSY = ("wait", "skip")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationOptions:
    """The arguments of an ``OverlappedValidation``, which describes them.

    Raises:
        ValueError: an argument is out of its range.
        TypeError: an argument is not callable, or not iterable.
    """

    evaluate: Evaluate
    loader: AnyLoader | Iterable[Batch]
    device: torch.device | None
    parts: int
    when_busy: WhenBusy
    threads_per_part: int
    replica: Replica | None
    timeout: float | None

    def __post_init__(self) -> None:
        if not callable(self.evaluate):
            raise TypeError(
                "evaluate should be a function of a model and batches that returns sums and "
                f"counts, not {self.evaluate!r}"
            )
        if not isinstance(self.loader, Iterable) or isinstance(self.loader, Iterator):
            raise TypeError(
                "val_loader should be a loader, which is iterated once for each validation, not "
                f"{self.loader!r}"
            )
        _check_count("parts", self.parts)
        _check_count("threads_per_part", self.threads_per_part)
        if self.when_busy not in _WHEN_BUSY:
            raise ValueError(f"when_busy should be one of {_WHEN_BUSY}, not {self.when_busy!r}")
        if self.replica is not None and not callable(self.replica):  # modules are callable, too
            raise TypeError(
                f"replica should be a module, or a function that makes one, not {self.replica!r}"
            )
        if self.timeout is not None and not _is_positive(self.timeout):
            raise ValueError(
                f"timeout should be a positive number of seconds or None, not {self.timeout!r}"
            )


def device_of(device: torch.device | str | int | None) -> torch.device | None:
    """Returns the device of an argument; a CUDA device has its index."""
    if device is None:
        return None
    found = torch.device(device)
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} should be a positive int, not {value!r}")


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
