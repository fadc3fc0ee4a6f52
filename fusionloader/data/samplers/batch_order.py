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
    """All batches of an epoch, of all ranks, in order.

    Attributes:
        indices: sample indices, batch by batch.
        starts: start of each batch in ``indices``.
        stops: end of each batch in ``indices``.
    """

    indices: Indices
    starts: Places
    stops: Places

    def __len__(self) -> int:
        return len(self.starts)

    def batch(self, number: int) -> list[int]:
        """Returns the indices of a batch as Python ints."""
        found: list[int] = self.indices[self.starts[number] : self.stops[number]].tolist()
        return found

    @cached_property
    def checksum(self) -> int:
        """32-bit checksum of the order."""
        checksum = 0
        for array in (self.indices, self.starts, self.stops):
            checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
        return checksum


def smallest_unsigned(largest: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Returns uint32 or uint64, the smaller that holds ``largest``."""
    return np.dtype(np.uint32 if largest < 1 << 32 else np.uint64)


def smallest_signed(largest: int) -> np.dtype[np.signedinteger[Any]]:
    """Returns int32 or int64, the smaller that holds ``largest``."""
    return np.dtype(np.int32 if largest < 1 << 31 else np.int64)


def smallest_choice(count: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Returns the smallest unsigned type for numbers below ``count``."""
    return np.min_scalar_type(count - 1)


def make_generator(*key: int) -> np.random.Generator:
    """Returns a generator seeded by ``key``, integers from 0."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))
