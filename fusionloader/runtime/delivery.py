"""Batches on a device."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map


def to_device(batch: Any, device: torch.device) -> Any:
    """Returns ``batch`` with its tensors on ``device``; copies from page-locked memory overlap."""

    def move(leaf: Any) -> Any:
        return leaf.to(device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf

    return tree_map(move, batch)
