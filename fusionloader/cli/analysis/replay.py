"""A batch in memory that is handed out again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fusionloader.options.aliases import Batch


def leaves_of(batch: Batch) -> list[torch.Tensor]:
    """Returns the tensors of a collated batch, in order."""
    found: list[torch.Tensor] = []

    def look(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    _map_tensors(batch, look)
    return found


def batch_length(batch: Batch) -> int | None:
    """Returns the number of samples: the length of the first tensor; ``None`` without one."""
    return next((len(tensor) for tensor in leaves_of(batch) if tensor.dim()), None)


def _map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Returns the same nesting of containers with other tensors."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        changed = {key: _map_tensors(inner, change) for key, inner in value.items()}
        try:
            return type(value)(changed)  # type: ignore[call-arg]
        except TypeError:
            return changed
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map_tensors(inner, change) for inner in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_map_tensors(inner, change) for inner in value)
    return value


def _cloned(tensor: torch.Tensor) -> torch.Tensor:
    copy = tensor.detach().clone()
    return copy.pin_memory() if tensor.is_pinned() else copy


class Replay:
    """Keeps a copy of a batch, and hands it out.

    It hands out the same tensors each time, without a copy. Once training has written into one,
    all are copied anew.
    """

    def __init__(self, batch: Batch) -> None:
        self._kept = _map_tensors(batch, _cloned)
        self._lent = self._kept
        self._versions: list[int] = []
        self.samples = batch_length(batch)

    def batch(self) -> Batch:
        """Returns the batch, in containers that are the caller's."""
        if self._versions != [tensor._version for tensor in leaves_of(self._lent)]:
            self._lent = _map_tensors(self._kept, _cloned)
            self._versions = [tensor._version for tensor in leaves_of(self._lent)]
        return _map_tensors(self._lent, lambda tensor: tensor)
