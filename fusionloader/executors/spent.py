"""What samples have cost in a worker, until it is taken."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Spent:
    """Costs of some samples.

    Attributes:
        part_seconds: wall time by part of a plan, as in ``plan/parts.py``.
        read_bytes: of files, as they are stored.
        cache_hits: samples whose pixels were kept of an earlier epoch.
    """

    part_seconds: list[float] = field(default_factory=list)
    read_bytes: int = 0
    cache_hits: int = 0
