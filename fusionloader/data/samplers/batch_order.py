"""The batches of one epoch, as arrays."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.unsignedinteger[Any]]
Places = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True)
class BatchOrder:
    """All batches of an epoch, those of all ranks, in their order.

    Attributes:
        indices: of samples; those of a batch are neighbors.
        starts: where each batch begins in ``indices``.
        stops: where it ends.
    """

    indices: Indices
    starts: Places
    stops: Places

    def __len__(self) -> int:
        return len(self.starts)

    def batch(self, number: int) -> list[int]:
        """Returns the indices of a batch, as Python's integers."""
        found: list[int] = self.indices[self.starts[number] : self.stops[number]].tolist()
        return found

    @cached_property
    def checksum(self) -> int:
        """32 bits that tell this order from others."""
        checksum = 0
        for array in (self.indices, self.starts, self.stops):
            checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
        return checksum


def smallest_unsigned(largest: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Returns the smaller of 32 and 64 bits without a sign that hold ``largest``."""
    return np.dtype(np.uint32 if largest < 1 << 32 else np.uint64)


def smallest_signed(largest: int) -> np.dtype[np.signedinteger[Any]]:
    """Returns the smaller of 32 and 64 bits with a sign that hold ``largest``."""
    return np.dtype(np.int32 if largest < 1 << 31 else np.int64)


def smallest_choice(count: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Returns the smallest type without a sign for numbers below ``count``."""
    return np.min_scalar_type(count - 1)


def make_generator(*key: int) -> np.random.Generator:
    """Returns a generator whose draws are a function of ``key``, whole numbers from 0, alone."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))
