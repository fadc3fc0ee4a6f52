"""Images in Parquet files, which are unpacked once to files of plain bytes."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fusionloader.data.sources.byte_ranges import ByteRanges
from fusionloader.data.sources.encoded_images import EncodedImages, Transform
from fusionloader.data.sources.ranged_samples import ShardTargets, joined, no_targets
from fusionloader.data.sources.sample_names import RowNames
from fusionloader.data.sources.shards.columns.arrow_columns import (
    Values,
    binary_part,
    check_column,
    find_column,
    read_targets,
)
from fusionloader.data.sources.shards.shard_paths import Paths, shard_paths
from fusionloader.data.sources.shards.unpacked_files import Unpacking, unpacked
from fusionloader.system.amounts import counted

_BATCH_BYTES = 32 << 20  # approximate bytes of images in memory at a time
_END = struct.Struct("<Q8s")  # end of an unpacked file: number of lengths before it, and a mark
_MARK = b"FLIMAGES"


class ParquetImages(EncodedImages):
    """Encoded images in a column of Parquet files.

    Pages of Parquet files are compressed. Therefore the images are copied once to files of plain
    bytes in the user's cache folder, which all jobs and ranks of the machine share. Before the
    first epoch this takes the time to read all images, and as much disk space as they have bytes.
    """

    def __init__(
        self,
        files: Paths,
        *,
        image: str = "image",
        target: str | None = "label",
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        unpack_to: str | os.PathLike[str] | None = None,
    ) -> None:
        """Unpacks the images of files that are not unpacked yet.

        Args:
            files: a path, a folder, a pattern or a list of these.
            image: name of the column of images: binary, or structs of bytes and path;
                ``"image.bytes"`` for a field of a struct.
            target: name of the column of targets; ``None`` for the target -1.
            transform: transform of an image.
            target_transform: transform of a target; needed if targets are not integers.
            unpack_to: a folder; by default ``unpacked`` in the user's cache folder.

        Raises:
            ValueError: a file is no Parquet file, lacks a column, or has a row without an image.
            FileNotFoundError: a file does not exist.
            OSError: the disk is full.
        """
        paths = shard_paths(files, ".parquet")
        targets = [_targets(path, target, target_transform is not None) for path in paths]
        results = unpacked([_unpacking(path, image) for path in paths], unpack_to)
        lengths = [_lengths(path) for path in results]
        counts = [len(some) for some in lengths]
        offsets = [np.cumsum(some, dtype=np.uint64) - some for some in lengths]
        super().__init__(
            ByteRanges(
                tuple(results),
                np.repeat(np.arange(len(paths), dtype=np.uint32), counts),
                np.concatenate(offsets),
                np.concatenate(lengths),
            ),
            joined(targets),
            transform=transform,
            target_transform=target_transform,
            names=RowNames(paths, counts),
        )

    def describe(self) -> str:
        unpacked_files = self.byte_ranges().files
        files = counted(len(unpacked_files), "Parquet file")
        where = os.path.dirname(unpacked_files[0])
        return f"{counted(len(self), 'value')} of {files}, unpacked in {where}"


@contextlib.contextmanager
def _opened(path: str) -> Iterator[pq.ParquetFile]:
    """Opens a file.

    Raises:
        ValueError: the file is damaged, which may be found only when the block reads it.
    """
    try:
        # Mapped, so that each page is read when it is decompressed, and not a whole column at once.
        with pq.ParquetFile(path, memory_map=True) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # a failure of the disk
        raise ValueError(
            f"{path!r} is no whole Parquet file ({str(error).strip()}): write or download it again"
        ) from error


def _targets(path: str, name: str | None, has_transform: bool) -> ShardTargets:
    with _opened(path) as file:
        if name is None:
            return no_targets(file.metadata.num_rows)
        check_column(file.schema_arrow, name, repr(path))
        table = file.read(columns=[name])
        return read_targets(
            find_column(table, name, repr(path)), name, repr(path), has_transform=has_transform
        )


def _unpacking(path: str, image: str) -> Unpacking:
    with _opened(path) as file:
        column = binary_part(check_column(file.schema_arrow, image, repr(path)), image, repr(path))
        nbytes = _column_bytes(file.metadata, column)
        nbytes += 4 * file.metadata.num_rows + _END.size
    return Unpacking(path, column, nbytes, partial(_write, path, column))


def _column_bytes(metadata: Any, column: str) -> int:
    """Returns the uncompressed bytes of a column's values."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    return sum(one.total_uncompressed_size for one in columns if one.path_in_schema == column)


def _write(path: str, column: str, out: BinaryIO) -> None:
    """Writes the values of a column one after the other, then their lengths."""
    lengths: list[npt.NDArray[np.uint32]] = [np.empty(0, np.uint32)]
    with _opened(path) as file:
        each = _column_bytes(file.metadata, column) // max(file.metadata.num_rows, 1)
        rows = max(1, _BATCH_BYTES // max(each, 1))
        for batch in file.iter_batches(min(rows, 1 << 16), columns=[column]):
            array = find_column(pa.Table.from_batches([batch]), column, path).combine_chunks()
            for chunk in array.chunks if isinstance(array, pa.ChunkedArray) else [array]:
                values = Values.of(chunk)
                if not values.lengths.all():
                    row = sum(map(len, lengths)) + int(values.lengths.argmin())
                    raise ValueError(
                        f"row {row} of {path!r} has no bytes in {column!r}: write the file with "
                        "its images in it and without such rows"
                    )
                if values.data is not None and len(values.lengths):
                    begin = int(values.starts[0])
                    end = int(values.starts[-1] + values.lengths[-1])
                    out.write(memoryview(values.data)[begin:end])
                lengths.append(values.lengths.astype(np.uint32))
    everything = np.concatenate(lengths)
    out.write(everything.data)
    out.write(_END.pack(len(everything), _MARK))


def _lengths(path: str) -> npt.NDArray[np.uint32]:
    """Returns the lengths of the images in an unpacked file."""
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        file.seek(max(size - _END.size, 0))
        end = file.read()
        count, mark = _END.unpack(end) if len(end) == _END.size else (0, b"")
        if mark == _MARK and 4 * count <= size - _END.size:
            file.seek(size - _END.size - 4 * count)
            lengths = np.frombuffer(file.read(4 * count), np.uint32)
            if int(lengths.sum(dtype=np.int64)) == size - _END.size - 4 * count:
                return lengths
    raise ValueError(f"{path!r} is not what was unpacked: remove it, and it is made again")
