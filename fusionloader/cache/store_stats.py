"""What is in the stores of a loader."""

from __future__ import annotations

from dataclasses import dataclass

MEMORY, DISK = "cache_memory", "cache_disk"
"""Names under which the accounts of a cache are among what is kept."""

DECODED_CACHE, JPEG_INDEX = "decoded_cache", "jpeg_index"
"""Names of two stores, which have lines of their own in ``stats()``."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """A decoded cache, a JPEG index, or another part of what is kept.

    Attributes:
        images: that are kept.
        bytes: taken.
        budget: bytes that may be taken.
    """

    images: int
    bytes: int
    budget: int
