"""What samples have cost in a worker, until it is taken."""

from __future__ import annotations

from dataclasses import dataclass, field

from fusionloader.system.shm import cache_counts


@dataclass(slots=True)
class Spent:
    """Costs of some samples.

    Attributes:
        part_seconds: wall time by part of a plan, as in ``transforms/plan/parts.py``.
        read_bytes: of files, as they are stored.
        cache: samples by where they came from, as in ``system/shm/cache_counts.py``.
    """

    part_seconds: list[float] = field(default_factory=list)
    read_bytes: int = 0
    cache: list[int] = field(default_factory=cache_counts.nothing)
