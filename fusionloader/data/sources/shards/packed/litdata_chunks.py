"""A chunk of LitData: samples one after the other, or, of plain dictionaries, an Arrow file.

The Arrow file stands behind the samples, which are empty then, and is followed by its length and a
mark.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from fusionloader.data.sources.shards.packed.packed_items import (
    Integers,
    bounds_of,
    fields_of,
    numbers_at,
    texts_at,
)
from fusionloader.data.sources.shards.targets import Targets, no_targets

NUMBERS = {"int": "<i8", "bool": "|u1"}
"""Formats of leaves that are integers."""
TEXTS = ("str", "text")
"""Formats of leaves that are text."""

_END = struct.Struct("<I8s")
_MARK = b"LDARW01\0"


def images_in(
    path: str, formats: dict[str, str], image: str, target: str | None, has_transform: bool
) -> tuple[Integers, Targets]:
    """Returns where the images of a chunk are, an array (start and length, samples), and targets.

    Args:
        path: of the chunk.
        formats: of the leaves by name, in the order of the fields.
        image: the leaf of images.
        target: that of targets, ``None`` for none.
        has_transform: whether something makes targets of what is no integer.

    Raises:
        ValueError: the chunk is damaged, or has no such leaves.
        FileNotFoundError: it is not there.
    """
    data = _mapped(path)
    bounds = bounds_of(data, 4, path)
    if len(bounds) > 1 and bounds[0] == bounds[-1]:
        return _in_arrow(path, data, len(bounds) - 1, image, target, has_transform)
    leaves = list(formats)
    starts, lengths = fields_of(data, bounds, [None] * len(leaves), path)
    column = leaves.index(image)
    place = np.stack([starts[column], lengths[column]])
    if target is None:
        return place, no_targets(len(bounds) - 1)
    column = leaves.index(target)
    if formats[target] in TEXTS:
        return place, texts_at(data, starts[column], lengths[column])
    return place, numbers_at(data, starts[column], np.dtype(NUMBERS[formats[target]]))


def _mapped(path: str) -> npt.NDArray[np.uint8]:
    try:
        return np.memmap(path, np.uint8, "r")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path!r} of index.json is not there: download it") from None
    except ValueError as error:  # an empty file cannot be mapped
        raise ValueError(f"{path!r} is empty: download or write it again") from error


def _in_arrow(
    path: str,
    data: npt.NDArray[np.uint8],
    count: int,
    image: str,
    target: str | None,
    has_transform: bool,
) -> tuple[Integers, Targets]:
    import pyarrow as pa

    from fusionloader.data.sources.shards.columns.arrow_columns import (
        column_of,
        ranges_of,
        table_of,
        targets_of,
    )

    nbytes, mark = _END.unpack(data[-_END.size :].tobytes())
    if mark != _MARK or nbytes + _END.size > len(data):
        raise ValueError(f"{path!r} has {count} empty samples: it is damaged, write it again")
    end = len(data) - _END.size
    with pa.memory_map(path) as file:
        rows = file.read_buffer().slice(end - nbytes, nbytes)
    table = table_of(pa.BufferReader(rows), path)
    found = ranges_of(column_of(table, image, path), image, path)
    place = np.stack([found.offset.astype(np.int64), found.nbytes.astype(np.int64)])
    if target is None:
        return place, no_targets(count)
    column = column_of(table, target, path)
    return place, targets_of(column, target, path, has_transform=has_transform)
