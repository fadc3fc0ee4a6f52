"""Batches that torch copies to a device, where the native part is missing, too."""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_map

from fusionloader.options.aliases import Batch


def to_device(batch: Batch, device: torch.device | str | int | None) -> Batch:
    """Returns ``batch`` with its tensors on ``device``, or as it is where that is ``None``.

    Copies from page-locked memory overlap.
    """
    if device is None:
        return batch
    device = torch.device(device)

    def move(leaf: object) -> object:
        return leaf.to(device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf

    return tree_map(move, batch)
