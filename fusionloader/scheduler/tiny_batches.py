"""The order of samples in a mini-batch, in which it is cut into tiny-batches.

By size, it is FusionFlow's (§5.2). By file, workers that each begin at a part of their own meet the
same files again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


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


def order_by_file(files: Sequence[Hashable], tiny_size: int) -> list[int]:
    """Returns the rows of a mini-batch, those of one file side by side.

    The order of files is the same in all mini-batches, so a file lies at about the same part of
    each. Within a tiny-batch rows ascend, so that of several bad samples the first is reported.

    Args:
        files: file of each sample; equal values are one file.
        tiny_size: samples in a tiny-batch.
    """
    places = list(map(hash, files))
    rows = sorted(range(len(files)), key=places.__getitem__)
    cut = (rows[at : at + tiny_size] for at in range(0, len(rows), tiny_size))
    return [row for tiny_batch in cut for row in sorted(tiny_batch)]
