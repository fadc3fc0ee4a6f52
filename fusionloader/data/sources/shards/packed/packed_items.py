"""Parses samples of MDS shards and LitData chunks.

Both formats begin with the number of samples n and n + 1 bounds, each of 4 bytes. A sample begins
with the lengths of its fields.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fusionloader.data.sources.byte_ranges import ByteRanges

Integers = npt.NDArray[np.int64]


@contextlib.contextmanager
def index_errors(path: str) -> Iterator[None]:
    """Turns the errors of a block that reads an ``index.json`` into errors about that file.

    Raises:
        ValueError: the block raised an error that JSON of another structure can cause.
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


def check_field(
    there: Mapping[str, str], name: str, kinds: Sequence[str], what: str, shard: str, word: str
) -> None:
    """Raises a ``ValueError`` unless the field ``name`` is there and of one of ``kinds``.

    ``word`` is what the format calls a field.
    """
    if there.get(name) not in kinds:
        known = ", ".join(f"{field!r} ({kind})" for field, kind in there.items())
        raise ValueError(
            f"{shard} has no {word} {name!r} of {what}, which are {', '.join(kinds)}: its fields "
            f'are {known}; choose with image="..." and target="...", or give a target_transform '
            "for str"
        )


def join_places(
    paths: Sequence[str], places: Sequence[Integers]
) -> tuple[ByteRanges, Sequence[int]]:
    """Returns the ranges of all samples, and the number of samples in each file.

    ``places`` has starts and lengths of a file's images, of shape (2, samples).
    """
    counts = [place.shape[1] for place in places]
    starts, lengths = np.concatenate(places, axis=1)
    numbers = np.repeat(np.arange(len(paths), dtype=np.uint32), counts)
    return ByteRanges(paths, numbers, starts, lengths), counts


def read_bounds(data: npt.NDArray[np.uint8], path: str) -> Integers:
    """Returns the start of each sample of a shard, followed by the end of the last one.

    Args:
        data: bytes of the shard: the number of samples, and their bounds.
        path: path of the shard, for messages.

    Raises:
        ValueError: the shard is cut off or damaged.
    """
    count = int(data[:4].view(np.uint32)[0]) if len(data) >= 4 else 0
    end = 4 + 4 * (count + 1)
    bounds = data[4:end].view(np.uint32).astype(np.int64) if end <= len(data) else None
    if bounds is None or bounds[0] < end or bounds[-1] > len(data) or (np.diff(bounds) < 0).any():
        raise ValueError(
            f"{path!r} is cut off or damaged ({len(data)} bytes): download or write it again"
        )
    return bounds


def find_fields(
    data: npt.NDArray[np.uint8], bounds: Integers, sizes: Sequence[int | None], path: str
) -> tuple[Integers, Integers]:
    """Returns starts and lengths of the fields of all samples, two arrays (fields, samples).

    Args:
        data: bytes of the shard.
        bounds: bounds of the samples.
        sizes: size of each field; ``None`` if the sample begins with it.
        path: path of the shard, for messages.

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
    """Returns the numbers of type ``kind`` at offsets ``starts``, as int64."""
    gathered = np.asarray(data[starts[:, None] + np.arange(kind.itemsize)])
    numbers: Integers = gathered.reshape(-1).view(kind).astype(np.int64)
    return numbers


def texts_at(data: npt.NDArray[np.uint8], starts: Integers, lengths: Integers) -> list[str]:
    """Returns the UTF-8 texts at offsets ``starts``."""
    bounds = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    return [data[begin:end].tobytes().decode() for begin, end in bounds]


def _odd(path: str) -> ValueError:
    return ValueError(
        f"{path!r}: the fields of its samples do not fill them, as index.json says they do: "
        "download or write the shards again"
    )
