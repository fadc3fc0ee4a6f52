"""Copies batches to a device through torch. It works without the native part."""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_map

from fusionloader.options.aliases import Batch


def to_device(batch: Batch, device: torch.device | str | int | None) -> Batch:
    """Returns ``batch`` with its tensors on ``device``, or unchanged if that is ``None``.

    Copies from page-locked memory are asynchronous.
    """
    if device is None:
        return batch
    device = torch.device(device)

    def move(leaf: object) -> object:
        return leaf.to(device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf

    return tree_map(move, batch)
