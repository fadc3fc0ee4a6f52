"""The order of samples in a mini-batch (FusionFlow §5.2: size-sorted tiny-batches)."""

from __future__ import annotations

from collections.abc import Sequence


def order_by_size(sizes: Sequence[int]) -> list[int]:
    """Returns the rows of a mini-batch, smallest sample first.

    Args:
        sizes: bytes of each sample, 0 if unknown. Unknown sizes count as average, so that such
            samples are neither always first nor always last. Ties keep the sampler's order.
    """
    known = [size for size in sizes if size]
    if not known:
        return list(range(len(sizes)))
    if len(known) < len(sizes):
        average = sum(known) // len(known)
        sizes = [size or average for size in sizes]
    return sorted(range(len(sizes)), key=sizes.__getitem__)
