"""Contents of a loader's stores."""

from __future__ import annotations

from dataclasses import dataclass

MEMORY, DISK = "cache_memory", "cache_disk"
"""Names of a cache's accounts among the stores."""

DECODED_CACHE, JPEG_INDEX = "decoded_cache", "jpeg_index"
"""Names of two stores that have their own lines in ``stats()``."""

NAMES_IN_STATS = {"decoded": DECODED_CACHE, "index": JPEG_INDEX}
"""Names in ``stats()`` that differ from those of the stores."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """The contents of one store, such as the decoded cache or the JPEG index.

    Attributes:
        images: number of cached images.
        bytes: bytes in use.
        budget: most bytes that may be used.
    """

    images: int
    bytes: int
    budget: int
