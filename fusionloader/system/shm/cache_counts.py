"""What a worker counts of its cache, as in ``csrc/queue/worker_counts.hpp``.

DECODED: samples made of pixels in memory. ENCODED: of encoded bytes in memory. DISK_DECODED and
DISK_ENCODED: the same from a disk. REMOTE: of encoded bytes that another server keeps. MISSED:
read from storage. FILLED: of those, kept.
"""

NAMES = ("decoded", "encoded", "disk_decoded", "disk_encoded", "remote", "missed", "filled")
DECODED, ENCODED, DISK_DECODED, DISK_ENCODED, REMOTE, MISSED, FILLED = range(len(NAMES))
HITS = (DECODED, ENCODED, DISK_DECODED, DISK_ENCODED, REMOTE)


def nothing() -> list[int]:
    """Returns counters that stand at 0."""
    return [0] * len(NAMES)
