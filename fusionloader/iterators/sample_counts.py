"""How many samples there are in a mini-batch of torch's own loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data._utils.worker import _IterableDatasetStopIteration

from fusionloader.aliases import Index


def asked_samples(indices: list[Index]) -> int:
    """Returns how many samples were asked for."""
    return len(indices) if isinstance(indices, list) else 1  # batch_size=None


def made_samples(data: Any, asked: int) -> int:
    """Returns how many samples there are in a batch of an iterable dataset.

    Fewer than ``asked`` in the last one of a worker; ``asked`` for what has no length we know.
    """
    if isinstance(data, _IterableDatasetStopIteration):
        return 0
    while isinstance(data, (Mapping, Sequence)) and not isinstance(data, (str, bytes)) and data:
        data = next(iter(data.values() if isinstance(data, Mapping) else data))
    if isinstance(data, torch.Tensor) and data.dim() > 0:
        return min(len(data), asked)
    return asked
