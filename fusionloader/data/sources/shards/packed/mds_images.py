"""Images in the shards of mosaicml-streaming (MDS)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fusionloader.data.sources.encoded_images import EncodedImages, Transform
from fusionloader.data.sources.ranged_samples import ShardTargets, joined, no_targets
from fusionloader.data.sources.sample_names import RowNames
from fusionloader.data.sources.shards.packed.packed_items import (
    check_field,
    find_fields,
    index_errors,
    join_places,
    numbers_at,
    read_bounds,
    texts_at,
)
from fusionloader.data.sources.shards.unpacked_files import Unpacking, unpacked
from fusionloader.system.amounts import counted

_IMAGES = ("jpeg", "png", "bytes", "jpeg_array", "jpegarray")
_NUMBERS = {"int": "<i8"} | {
    name: np.dtype(name).newbyteorder("<").str
    for name in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
}
_CODECS = {"zstd": "zstd", "gz": "gzip", "bz2": "bz2", "br": "brotli"}


class MDSImages(EncodedImages):
    """Encoded images in a local folder of MDS shards.

    Compressed shards are unpacked once to the user's cache folder, unless ``streaming`` has
    unpacked them beside the compressed ones.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        image: str = "image",
        target: str | None = "label",
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        unpack_to: str | os.PathLike[str] | None = None,
    ) -> None:
        """Reads ``index.json`` and the bounds of the samples.

        Args:
            folder: folder with ``index.json`` and the shards.
            image: name of the column of images, of encoding jpeg, png, jpegarray or bytes.
            target: name of the column of targets: integers, or str with a ``target_transform``;
                ``None`` for the target -1.
            transform: transform of an image.
            target_transform: transform of a target.
            unpack_to: folder for the unpacked shards; by default in the user's cache folder.

        Raises:
            ValueError: a column is missing or of another encoding, or a shard is damaged.
            FileNotFoundError: the index or a shard does not exist.
        """
        with index_errors(os.path.join(folder, "index.json")):
            shards = _read_index(Path(folder))
            for shard in shards:
                _check(shard, image, _IMAGES, "images")
                if target is not None:
                    texts = ("str", "str_int") if target_transform is not None else ("str_int",)
                    _check(shard, target, (*_NUMBERS, *texts), "targets")
            paths = _local_paths(Path(folder), shards, unpack_to)
            places, targets = [], []
            for shard, path in zip(shards, paths, strict=True):
                place, found = _read_shard(shard, path, image, target)
                places.append(place)
                targets.append(found)
        ranges, counts = join_places(paths, places)
        super().__init__(
            ranges,
            joined(targets),
            transform=transform,
            target_transform=target_transform,
            names=RowNames([_name(shard) for shard in shards], counts, "sample"),
        )
        elsewhere = {os.path.dirname(path) for path in paths} - {os.path.normpath(folder)}
        self._unpacked_in = sorted(elsewhere)

    def describe(self) -> str:
        shards = counted(len(self.byte_ranges().files), "shard")
        text = f"{counted(len(self), 'sample')} of {shards}"
        return ", unpacked in ".join([text, *self._unpacked_in])


def _read_index(folder: Path) -> list[dict[str, Any]]:
    index = folder / "index.json"
    try:
        found = json.loads(index.read_text())
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{str(folder)!r} has no index.json: give the folder that MDSWriter wrote, one split "
            "of it"
        ) from None
    shards = found.get("shards") or []
    odd = [shard for shard in shards if shard.get("format") != "mds" or shard["version"] != 2]
    if odd or not shards:
        what = f"{odd[0].get('format')!r} of version {odd[0].get('version')}" if odd else "none"
        raise ValueError(f"{str(index)!r} has shards of format {what}, expected 'mds' of version 2")
    return list(shards)


def _name(shard: dict[str, Any]) -> str:
    return str(shard["raw_data"]["basename"])


def _check(shard: dict[str, Any], name: str, encodings: Sequence[str], what: str) -> None:
    columns = dict(zip(shard["column_names"], shard["column_encodings"], strict=True))
    check_field(columns, name, encodings, what, _name(shard), "column")


def _local_paths(
    folder: Path, shards: Sequence[dict[str, Any]], unpack_to: str | os.PathLike[str] | None
) -> list[str]:
    """Returns the paths of the uncompressed shards, and unpacks those that are not there."""
    paths = [folder / shard["raw_data"]["basename"] for shard in shards]
    packed = [number for number, path in enumerate(paths) if not path.exists()]
    work = [_unpacking(folder, shards[number]) for number in packed]
    found = list(map(str, paths))
    if work:
        for number, path in zip(packed, unpacked(work, unpack_to), strict=True):
            found[number] = path
    for shard, path in zip(shards, found, strict=True):
        size, expected = os.stat(path).st_size, shard["raw_data"]["bytes"]
        if size != expected:
            raise ValueError(
                f"{path!r} ({_name(shard)}) has {size} bytes, expected {expected}: download or "
                "write it again"
            )
    return found


def _unpacking(folder: Path, shard: dict[str, Any]) -> Unpacking:
    packed = shard["zip_data"]
    path = folder / packed["basename"] if packed else None
    if path is None or not path.exists():
        missing = folder / shard["raw_data"]["basename"] if path is None else path
        raise FileNotFoundError(f"{str(missing)!r} of index.json is not there: download the shards")
    name = str(shard["compression"]).split(":")[0]
    if name not in _CODECS:
        raise ValueError(
            f"{str(path)!r} is compressed by {name!r}, expected {', '.join(_CODECS)} or none: "
            "write the shards without compression, which does not make images smaller"
        )
    nbytes = shard["raw_data"]["bytes"]
    return Unpacking(str(path), "raw", nbytes, partial(_decompress, str(path), _CODECS[name]))


def _decompress(path: str, codec: str, out: BinaryIO) -> None:
    import pyarrow as pa

    with pa.OSFile(path) as file, pa.CompressedInputStream(file, codec) as stream:
        try:
            shutil.copyfileobj(stream, out, 1 << 20)
        except (OSError, pa.ArrowInvalid) as error:
            if not isinstance(error, pa.ArrowInvalid) and error.errno is not None:
                raise
            raise ValueError(f"{path!r} cannot be decompressed: {error}") from error


def _read_shard(
    shard: dict[str, Any], path: str, image: str, target: str | None
) -> tuple[npt.NDArray[np.int64], ShardTargets]:
    """Returns starts and lengths of a shard's images, of shape (2, samples), and the targets."""
    data = np.memmap(path, np.uint8, "r")
    bounds = read_bounds(data, path)
    starts, lengths = find_fields(data, bounds, shard["column_sizes"], path)
    names = shard["column_names"]
    column = names.index(image)
    place = np.stack([starts[column], lengths[column]])
    if target is None:
        return place, no_targets(len(bounds) - 1)
    column = names.index(target)
    encoding = shard["column_encodings"][column]
    if encoding in _NUMBERS:
        return place, numbers_at(data, starts[column], np.dtype(_NUMBERS[encoding]))
    texts = texts_at(data, starts[column], lengths[column])
    return place, np.array(texts, np.int64) if encoding == "str_int" else texts
