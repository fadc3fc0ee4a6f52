"""Names for what a user's code decides on, and torch's classes of it."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, Dataset

Index = Any
"""What a sampler yields for a sample: an int, unless the user's sampler has other keys."""

Sample = Any
"""What a dataset returns for an index."""

Batch = Any
"""What a loader yields: collated samples."""

AnyDataset = Dataset[Any]
AnyLoader = DataLoader[Any]

State = dict[str, Any]
"""What ``state_dict`` returns."""
