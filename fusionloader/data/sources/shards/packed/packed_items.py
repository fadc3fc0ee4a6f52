"""Samples of MDS shards and LitData chunks: their bounds first, in each the lengths of its fields.

Both begin with a count and so many bounds, and one more, of 4 bytes each.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


@contextlib.contextmanager
def index_errors(path: str) -> Iterator[None]:
    """Says of an ``index.json`` that it is damaged where something in it is not as expected.

    Raises:
        ValueError: the block raises what JSON of another structure makes it raise.
    """
    try:
        yield
    except (
        *(AttributeError, IndexError, KeyError, TypeError),
        *(OverflowError, RecursionError, UnicodeDecodeError, json.JSONDecodeError),
    ) as error:
        raise ValueError(
            f"{path!r} is damaged or no index of these shards ({error!r}): download or write it "
            "again"
        ) from error
    except ValueError as error:
        if os.path.dirname(path) in str(error):
            raise
        raise ValueError(f"{path!r}: {error}") from error


def read_bounds(data: npt.NDArray[np.uint8], first: int, path: str) -> Integers:
    """Returns where the samples of a shard begin, and the end of the last.

    Args:
        data: the shard.
        first: where the bounds begin.
        path: of the shard, for messages.

    Raises:
        ValueError: the shard is cut off or is none.
    """
    count = int(data[:4].view(np.uint32)[0]) if len(data) >= 4 else 0
    end = first + 4 * (count + 1)
    bounds = data[first:end].view(np.uint32).astype(np.int64) if end <= len(data) else None
    if bounds is None or bounds[0] < end or bounds[-1] > len(data) or (np.diff(bounds) < 0).any():
        raise ValueError(
            f"{path!r} is cut off or damaged ({len(data)} bytes): download or write it again"
        )
    return bounds


def find_fields(
    data: npt.NDArray[np.uint8], bounds: Integers, sizes: Sequence[int | None], path: str
) -> tuple[Integers, Integers]:
    """Returns where the fields of samples begin, and their lengths: two arrays (fields, samples).

    Args:
        data: the shard.
        bounds: of its samples.
        sizes: of the fields; those of ``None`` stand at the beginning of each sample.
        path: of the shard, for messages.

    Raises:
        ValueError: the fields do not fill the samples.
    """
    given = [number for number, size in enumerate(sizes) if size is None]
    begins = bounds[:-1]
    lengths = np.empty((len(sizes), len(begins)), np.int64)
    for number, size in enumerate(sizes):
        lengths[number] = size or 0
    if len(begins):
        head = 4 * len(given)
        if int(begins[-1]) + head > len(data):
            raise _odd(path)
        for place, number in enumerate(given):
            lengths[number] = numbers_at(data, begins + 4 * place, np.dtype("<u4"))
    starts = np.cumsum(lengths, axis=0) - lengths
    starts += begins + 4 * len(given)
    if len(begins) and not np.array_equal(starts[-1] + lengths[-1], bounds[1:]):
        raise _odd(path)
    return starts, lengths


def numbers_at(
    data: npt.NDArray[np.uint8], starts: Integers, kind: np.dtype[np.generic]
) -> Integers:
    """Returns the numbers that begin at some places, int64 of the same shape."""
    gathered = np.asarray(data[starts[:, None] + np.arange(kind.itemsize)])
    numbers: Integers = gathered.reshape(-1).view(kind).astype(np.int64)
    return numbers


def texts_at(data: npt.NDArray[np.uint8], starts: Integers, lengths: Integers) -> list[str]:
    """Returns the UTF-8 texts that begin at some places."""
    bounds = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    return [data[begin:end].tobytes().decode() for begin, end in bounds]


def _odd(path: str) -> ValueError:
    return ValueError(
        f"{path!r}: the fields of its samples do not fill them, as index.json says they do: "
        "download or write the shards again"
    )
