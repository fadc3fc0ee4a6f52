"""Indices of a worker's cache counters, as in ``csrc/queue/worker_counts.hpp``.

They count samples made from: DECODED, pixels in memory; ENCODED, encoded bytes in memory;
DISK_DECODED and DISK_ENCODED, the same on a disk; REMOTE, encoded bytes in another server's cache;
MISSED, storage. FILLED counts the missed samples that were cached.
"""

NAMES = ("decoded", "encoded", "disk_decoded", "disk_encoded", "remote", "missed", "filled")
DECODED, ENCODED, DISK_DECODED, DISK_ENCODED, REMOTE, MISSED, FILLED = range(len(NAMES))
HITS = (DECODED, ENCODED, DISK_DECODED, DISK_ENCODED, REMOTE)


def nothing() -> list[int]:
    return [0] * len(NAMES)
