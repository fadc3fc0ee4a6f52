"""Type names for values that user code chooses, and for torch's classes of them."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, Dataset

Index = Any
"""A sampler's index of a sample: an int, unless the user's sampler yields other keys."""

Sample = Any
"""A dataset's value for an index."""

Batch = Any
"""Collated samples, as a loader yields them."""

AnyDataset = Dataset[Any]
AnyLoader = DataLoader[Any]

State = dict[str, Any]
"""The result of ``state_dict``."""
