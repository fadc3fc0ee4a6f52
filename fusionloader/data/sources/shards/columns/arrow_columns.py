"""Columns of Arrow tables: ranges of encoded images in mapped files, and targets."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fusionloader.data.sources.byte_ranges import ByteRanges
from fusionloader.data.sources.ranged_samples import ShardTargets
from fusionloader.data.sources.shards.mapped_files import MappedFiles

Rows = npt.NDArray[np.integer]

_CHECKED = 8  # values that are compared with the bytes in their file


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """Binary values in Arrow's memory.

    Attributes:
        starts: int64 array, start of each value in ``data``.
        lengths: int64 array, bytes of each value; 0 for null.
        data: buffer of all values; ``None`` if all are null.
    """

    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    data: pa.Buffer | None

    @classmethod
    def of(cls, array: pa.Array) -> Values:
        """Returns the values of an array of binary or string values."""
        wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
        _, offsets, data = array.buffers()
        if offsets is None:
            return cls(np.zeros(len(array), np.int64), np.zeros(len(array), np.int64), None)
        found = np.frombuffer(offsets, np.int64 if wide else np.int32)
        ends = found[array.offset : array.offset + len(array) + 1].astype(np.int64)
        lengths: npt.NDArray[np.int64] = np.diff(ends)
        if array.null_count:
            lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
        return cls(ends[:-1], lengths, data)


def read_table(source: pa.NativeFile, path: str) -> pa.Table:
    """Returns the table in an Arrow file, of the file or the stream format, without a copy.

    Args:
        source: the mapped file.
        path: path of the file, for messages.

    Raises:
        ValueError: it is not an Arrow file, or it is cut off.
    """
    try:
        try:
            return pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_stream(source).read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(
            f"{path!r} is no whole Arrow file ({error}): write or download it again"
        ) from error


def find_column(table: pa.Table, name: str, where: str) -> pa.ChunkedArray:
    """Returns a column, or a field of a struct such as ``"image.bytes"``.

    Args:
        table: the table.
        name: name of the column.
        where: name of the table, for messages.

    Raises:
        ValueError: there is no such column.
    """
    check_column(table.schema, name, where)
    if name in table.column_names:
        return table.column(name)
    first, *fields = name.split(".")
    chunks = table.column(first).chunks
    for field in fields:
        chunks = [_child(chunk, field) for chunk in chunks]
    return pa.chunked_array(chunks, type=find_type(table.schema, name))


def find_type(schema: pa.Schema, name: str) -> pa.DataType | None:
    """Returns the type of a column or of a field in it; ``None`` if there is none."""
    if name in schema.names:
        return schema.field(name).type
    first, *fields = name.split(".")
    if first not in schema.names:
        return None
    kind = schema.field(first).type
    for field in fields:
        if not pa.types.is_struct(kind) or kind.get_field_index(field) < 0:
            return None
        kind = kind.field(field).type
    return kind


def check_column(schema: pa.Schema, name: str, where: str) -> pa.DataType:
    """Returns the type of a column.

    Raises:
        ValueError: there is no such column; the message lists the columns.
    """
    kind = find_type(schema, name)
    if kind is None:
        columns = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise ValueError(
            f"{where} has no column {name!r}: its columns are {columns}; "
            'choose with image="..." and target="..."'
        )
    return kind


def read_targets(
    column: pa.ChunkedArray, name: str, where: str, *, has_transform: bool
) -> ShardTargets:
    """Returns the targets in a column: an int64 array, or with a transform a list.

    Raises:
        ValueError: without a transform, a target is missing or is not an integer.
    """
    if column.null_count and not has_transform:
        missing = column.is_null().to_numpy()
        raise ValueError(
            f"row {int(missing.argmax())} of {where} has no {name!r}: remove such rows, or give a "
            "target_transform that takes None"
        )
    kind = column.type
    if pa.types.is_boolean(kind) and not column.null_count:
        kind, column = pa.int8(), column.cast(pa.int8())
    if pa.types.is_integer(kind) and not column.null_count:
        whole: npt.NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
        return whole
    if has_transform:
        return list(column.to_pylist())
    raise ValueError(
        f"targets in {name!r} of {where} are {kind}, not integers: give a target_transform that "
        'makes them integers, another column by target="...", or target=None'
    )


def find_ranges(
    column: pa.ChunkedArray, name: str, where: str, wanted: Rows | None = None
) -> ByteRanges:
    """Returns the ranges of a column's images in mapped files.

    Args:
        column: a column of binary values, of structs with ``bytes`` and ``path``, or of paths.
        name: name of the column, for messages.
        where: name of the table, for messages.
        wanted: the rows whose ranges are returned, in this order; by default all.

    Raises:
        ValueError: a wanted image is missing, has another type, or is in memory and in no file.
        OSError: a file does not exist, or the system is not Linux.
    """
    files: dict[str, int] = {}
    mapped = MappedFiles()
    number = np.empty(len(column), np.uint32)
    offset = np.empty(len(column), np.uint64)
    nbytes = np.empty(len(column), np.int64)
    row = 0
    for chunk in column.chunks:
        rows = slice(row, row + len(chunk))
        row += len(chunk)
        encoded, paths = _parts(chunk, name, where)
        values = Values.of(encoded)
        nbytes[rows] = values.lengths
        if values.lengths.any():
            number[rows], offset[rows] = _places(values, mapped, files, name, where)
        empty = np.flatnonzero(values.lengths == 0)
        if wanted is not None:
            empty = empty[np.isin(empty + rows.start, wanted)]
        if len(empty):
            some = paths.take(pa.array(empty)).to_pylist() if paths is not None else []
            for position, path in zip(empty.tolist(), some or [None] * len(empty), strict=True):
                item = rows.start + position
                if not path:
                    raise ValueError(f"row {item} of {where} has no image in {name!r}: filter it")
                number[item] = files.setdefault(path, len(files))
                offset[item], nbytes[item] = 0, os.stat(path).st_size
    if wanted is None:
        wanted = np.arange(len(column))
    found = ByteRanges(tuple(files), number[wanted], offset[wanted], nbytes[wanted])
    _compare(found, column, wanted, name, where)
    return found


def binary_part(kind: pa.DataType, name: str, where: str) -> str:
    """Returns the name of the column, or of its field, with the encoded bytes.

    Raises:
        ValueError: the type cannot hold encoded images.
    """
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        return f"{name}.bytes"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return name
    raise ValueError(
        f"images in {name!r} of {where} are {kind}: encoded images are binary values, or structs "
        "of bytes and path"
    )


def _parts(chunk: pa.Array, name: str, where: str) -> tuple[pa.Array, pa.Array | None]:
    """Returns the encoded bytes of a chunk, and the paths of images without bytes."""
    kind = chunk.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.nulls(len(chunk), pa.binary()), chunk
    if binary_part(kind, name, where) == name:
        return chunk, None
    paths = _child(chunk, "path") if kind.get_field_index("path") >= 0 else None
    return _child(chunk, "bytes"), paths


def _child(chunk: pa.StructArray, name: str) -> pa.Array:
    """Returns a field of structs, null where its struct is; ``field()`` has what lies below."""
    return chunk.flatten()[chunk.type.get_field_index(name)]


def _places(
    values: Values, mapped: MappedFiles, files: dict[str, int], name: str, where: str
) -> tuple[int, npt.NDArray[np.uint64]]:
    """Returns the number of the mapped file with the values, and their offsets in it."""
    assert values.data is not None
    begin = int(values.starts[0])
    nbytes = int(values.starts[-1] + values.lengths[-1]) - begin
    place = mapped.find_place(values.data.address + begin)
    if place is None or place.available < nbytes:
        raise ValueError(
            f"images in {name!r} of {where} are in memory, not in an uncompressed Arrow file on "
            "disk: for a datasets.Dataset call save_to_disk(folder), and give "
            "load_from_disk(folder)"
        )
    number = files.setdefault(place.path, len(files))
    return number, (values.starts - begin + place.offset).astype(np.uint64)


def _compare(
    found: ByteRanges, column: pa.ChunkedArray, wanted: Rows, name: str, where: str
) -> None:
    """Raises ValueError if a file does not have the values, as after it was replaced."""
    rows = np.linspace(0, max(len(found) - 1, 0), min(_CHECKED, len(found)), dtype=np.int64)
    for item in rows.tolist():
        row = int(wanted[item])
        value = column[row].as_py()
        encoded = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(encoded, bytes):
            continue
        place = found.at(item)
        with open(place.file, "rb") as file:
            file.seek(place.offset)
            if file.read(place.nbytes) != encoded:
                raise ValueError(
                    f"{place.file!r} is not the file that {where} was loaded from (row {row} of "
                    f"{name!r} differs): load the dataset again"
                )
