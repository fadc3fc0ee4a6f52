"""Images in folders written by LitData's ``optimize``.

A chunk has samples one after the other. For plain dictionaries the samples are empty and followed
by an Arrow file, its length and a mark.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fusionloader.data.sources.encoded_images import EncodedImages, Transform
from fusionloader.data.sources.ranged_samples import ShardTargets, joined, no_targets
from fusionloader.data.sources.sample_names import RowNames
from fusionloader.data.sources.shards.packed.packed_items import (
    Integers,
    check_field,
    find_fields,
    index_errors,
    join_places,
    numbers_at,
    read_bounds,
    texts_at,
)
from fusionloader.system.amounts import counted

_IMAGES = ("jpeg", "image", "bytes")  # formats of leaves
_NUMBERS = {"int": "<i8", "bool": "|u1"}
_TEXTS = ("str", "text")
_END = struct.Struct("<I8s")  # of an Arrow file in a chunk: its length, and a mark
_MARK = b"LDARW01\0"


class LitDataImages(EncodedImages):
    """Encoded images in a local folder of LitData's chunks, read where they are."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        image: str = "image",
        target: str | None = "label",
        transform: Transform | None = None,
        target_transform: Transform | None = None,
    ) -> None:
        """Reads ``index.json`` and the bounds of the samples.

        Args:
            folder: folder with ``index.json`` and the chunks.
            image: name of the leaf of images, of format jpeg, image or bytes: its key in the
                optimized dictionary, its number in a tuple (``"0"``), or both (``"views.0"``).
            target: name of the leaf of targets: integers, or str with a ``target_transform``;
                ``None`` for the target -1.
            transform: transform of an image.
            target_transform: transform of a target.

        Raises:
            ValueError: a leaf is missing or of another type, or chunks are compressed, encrypted
                or damaged.
            FileNotFoundError: the index or a chunk does not exist.
        """
        with index_errors(os.path.join(folder, "index.json")):
            index = _read_index(Path(folder))
            formats = _parse_formats(index["config"], str(folder))
            check_field(formats, image, _IMAGES, "images", repr(str(folder)), "leaf")
            if target is not None:
                texts = _TEXTS if target_transform is not None else ()
                kinds = (*_NUMBERS, *texts)
                check_field(formats, target, kinds, "targets", repr(str(folder)), "leaf")
            paths = [os.path.join(folder, chunk["filename"]) for chunk in index["chunks"]]
            places, targets = [], []
            for path in paths:
                place, found = _images_in(
                    path, formats, image, target, target_transform is not None
                )
                places.append(place)
                targets.append(found)
        ranges, counts = join_places(paths, places)
        super().__init__(
            ranges,
            joined(targets),
            transform=transform,
            target_transform=target_transform,
            names=RowNames(paths, counts, "sample"),
        )

    def describe(self) -> str:
        chunks = counted(len(self.byte_ranges().files), "chunk")
        return f"{counted(len(self), 'sample')} of {chunks}"


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / "index.json"
    try:
        index: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{str(folder)!r} has no index.json: give the folder that litdata.optimize wrote"
        ) from None
    config = index.get("config")
    if not isinstance(config, dict) or not index.get("chunks"):
        raise ValueError(f"{str(path)!r} has no config or no chunks: it is no index of LitData")
    loader = config.get("item_loader", "PyTreeLoader")
    remedy = "optimize the data again without it: it does not make encoded images smaller"
    for option in ("compression", "ipc_compression", "encryption"):
        if config.get(option):
            raise ValueError(
                f"the chunks of {str(folder)!r} have {option} {config[option]}: {remedy}"
            )
    if loader != "PyTreeLoader":
        raise ValueError(f"the chunks of {str(folder)!r} are of {loader}, expected PyTreeLoader")
    return index


def _parse_formats(config: dict[str, Any], folder: str) -> dict[str, str]:
    """Returns the formats of the leaves by name, in the order of the fields."""
    formats = [str(name).split(":")[0] for name in config["data_format"]]
    try:
        names = list(_leaves(json.loads(config["data_spec"])[1]))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise ValueError(f"index.json of {folder!r}: unknown data_spec ({error!r})") from error
    return dict(zip(names, formats, strict=True))


def _leaves(spec: dict[str, Any], prefix: str = "") -> list[str]:
    """Returns the names of a tree's leaves, from the output of torch's ``treespec_dumps``."""
    children = spec["children_spec"]
    if spec["type"] is None:
        return [prefix.rstrip(".") or "0"]
    context = spec["context"]
    keys = json.loads(context) if isinstance(context, str) else context
    if not isinstance(keys, list) or len(keys) != len(children):
        keys = list(range(len(children)))
    pairs = zip(keys, children, strict=True)
    return [name for key, child in pairs for name in _leaves(child, f"{prefix}{key}.")]


def _images_in(
    path: str, formats: dict[str, str], image: str, target: str | None, has_transform: bool
) -> tuple[Integers, ShardTargets]:
    """Returns starts and lengths of a chunk's images, of shape (2, samples), and the targets.

    Args:
        path: path of the chunk.
        formats: formats of the leaves by name, in the order of the fields.
        image: name of the leaf of images.
        target: name of the leaf of targets; ``None`` for no targets.
        has_transform: whether targets have a transform and need not be integers.

    Raises:
        ValueError: the chunk is damaged, or lacks a leaf.
        FileNotFoundError: the chunk does not exist.
    """
    data = _mapped(path)
    bounds = read_bounds(data, path)
    if len(bounds) > 1 and bounds[0] == bounds[-1]:
        return _in_arrow(path, data, len(bounds) - 1, image, target, has_transform)
    leaves = list(formats)
    starts, lengths = find_fields(data, bounds, [None] * len(leaves), path)
    column = leaves.index(image)
    place = np.stack([starts[column], lengths[column]])
    if target is None:
        return place, no_targets(len(bounds) - 1)
    column = leaves.index(target)
    if formats[target] in _TEXTS:
        return place, texts_at(data, starts[column], lengths[column])
    return place, numbers_at(data, starts[column], np.dtype(_NUMBERS[formats[target]]))


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
) -> tuple[Integers, ShardTargets]:
    import pyarrow as pa

    from fusionloader.data.sources.shards.columns.arrow_columns import (
        find_column,
        find_ranges,
        read_table,
        read_targets,
    )

    nbytes, mark = _END.unpack(data[-_END.size :].tobytes())
    if mark != _MARK or nbytes + _END.size > len(data):
        raise ValueError(f"{path!r} has {count} empty samples: it is damaged, write it again")
    end = len(data) - _END.size
    with pa.memory_map(path) as file:
        rows = file.read_buffer().slice(end - nbytes, nbytes)
    table = read_table(pa.BufferReader(rows), path)
    found = find_ranges(find_column(table, image, path), image, path)
    place = np.stack([found.offset.astype(np.int64), found.nbytes.astype(np.int64)])
    if target is None:
        return place, no_targets(count)
    column = find_column(table, target, path)
    return place, read_targets(column, target, path, has_transform=has_transform)
