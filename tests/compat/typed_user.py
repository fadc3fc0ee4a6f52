"""A user's file that `make lint` checks: mypy's strict mode has to accept how loaders are used."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

from fusionloader import FusionLoader, GpuWorker


class Squares(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index**2)


def total(loader: FusionLoader[torch.Tensor]) -> float:
    with loader:
        return float(sum(batch.sum().item() for batch in loader))


loader = FusionLoader(Squares(), batch_size=3, num_workers=2, gpu_worker=GpuWorker(threads=2))
state: dict[str, Any] = loader.state_dict()
loader.load_state_dict(state)
loader.set_epoch(1)
print(total(loader), loader.explain(), loader.stats().batches, len(loader))
