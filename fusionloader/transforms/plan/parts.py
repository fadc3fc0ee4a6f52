"""Parts of a plan whose time is counted together, and what samples have cost.

The numbers of the parts are those of ``csrc/queue/parts.hpp``. READ: files. PASSES: decoding,
windows, resizes, flips and the conversion, which run together. PYTHON: user code after them. WRITE:
writing what user code made. Each stage has a part of its own, from FIRST_STAGE on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest

from fusionloader.system.shm import cache_counts

READ, PASSES, PYTHON, WRITE, FIRST_STAGE = range(5)


@dataclass(slots=True)
class Spent:
    """Costs of some samples.

    Attributes:
        part_seconds: wall time by number of the part.
        read_bytes: bytes of files that were read, as stored.
        cache: number of samples by cache tier, as in ``system/shm/cache_counts.py``.
    """

    part_seconds: list[float] = field(default_factory=list)
    read_bytes: int = 0
    cache: list[int] = field(default_factory=cache_counts.nothing)

    def __add__(self, other: Spent) -> Spent:
        """Returns the sum of two costs."""
        pairs = zip_longest(self.part_seconds, other.part_seconds, fillvalue=0.0)
        cache = [a + b for a, b in zip(self.cache, other.cache, strict=True)]
        return Spent([sum(pair) for pair in pairs], self.read_bytes + other.read_bytes, cache)
