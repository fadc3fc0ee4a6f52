"""Torch at work in borrowed memory, by the GPU worker's own pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusionloader.system.gpu_memory import Mapping
from fusionloader.transforms.executors.device.launch_memory import TorchPool

_COUNT = 1 << 20


def use_torch(blocks: Sequence[Mapping], device: int = 0) -> dict[str, Any]:
    """Allocates and computes in the blocks, asks for too much, and returns them.

    The sum of 0 .. n - 1, doubled, where the tensor lay, and what asking for too much raised.
    """
    import torch

    pool = TorchPool(device)
    pool.begin(blocks)
    with pool.borrowed():
        numbers = torch.arange(_COUNT, device=f"cuda:{device}", dtype=torch.int64)
        address = numbers.data_ptr()
        total = int((numbers * 2).sum().item())
        too_much = 2 * max(block.nbytes for block in blocks)
        try:
            torch.empty(too_much, dtype=torch.uint8, device=f"cuda:{device}")
            raised = "nothing"
        except torch.OutOfMemoryError as error:
            raised = type(error).__name__
    within = any(block.address <= address < block.address + block.nbytes for block in blocks)
    del numbers
    pool.end()
    for block in blocks:
        block.return_()
    return {"within": within, "right": total == _COUNT * (_COUNT - 1), "raised": raised}
