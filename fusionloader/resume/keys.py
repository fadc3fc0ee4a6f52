"""What identifies a sample's randomness: its index, and how often that came up in the epoch."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from operator import index as as_integer
from typing import Any

_MASK = (1 << 64) - 1


def key_of(index: Any) -> int:
    """Returns 64 bits that stand for an index: an integer itself, anything else hashed."""
    try:
        return as_integer(index) & _MASK
    except TypeError:
        digest = hashlib.blake2b(pickle.dumps(index, protocol=4), digest_size=8).digest()
        return int.from_bytes(digest, "little")


class Occurrences:
    """Counts, within an epoch, how often each key has come up.

    A sampler that repeats an index (with replacement, repeated augmentation) wants other draws each
    time. Keys below ``size`` cost a byte each, whether they come up or not.
    """

    def __init__(self, size: int) -> None:
        self._small = bytearray(size)
        self._other: dict[int, int] = {}

    def count(self, keys: Sequence[int]) -> list[int]:
        """Returns for each key, in order, how often it came before in the epoch."""
        small, size = self._small, len(self._small)
        counts = []
        for key in keys:
            before = small[key] if key < size else 255
            if before < 255:
                small[key] = before + 1
            else:
                before = self._other.get(key, 255 if key < size else 0)
                self._other[key] = before + 1
            counts.append(before)
        return counts
