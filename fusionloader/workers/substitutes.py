"""What replaces a bad sample under ``on_error="substitute"``: the same one in every run."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

ATTEMPTS = 10


def substitutes(seed: int, epoch: int, key: int, occurrence: int, count: int) -> Iterator[int]:
    """Yields up to ``ATTEMPTS`` dataset indices below ``count`` to try in place of a bad sample.

    None where ``count`` is 0: the dataset does not say how many it has.
    """
    for attempt in range(ATTEMPTS if count else 0):
        words = struct.pack("<5Q", seed, epoch, key, occurrence, attempt)
        digest = hashlib.blake2b(words, digest_size=8).digest()
        yield int.from_bytes(digest, "little") % count
