"""Images in Arrow files and in Hugging Face datasets, which are mapped Arrow files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from fusionloader.data.sources.encoded_images import EncodedImages, Transform
from fusionloader.data.sources.ranged_samples import ShardTargets, no_targets
from fusionloader.data.sources.shards.columns.arrow_columns import (
    Rows,
    find_column,
    find_ranges,
    read_table,
    read_targets,
)
from fusionloader.data.sources.shards.shard_paths import Paths, shard_paths
from fusionloader.system.amounts import counted


class ArrowImages(EncodedImages):
    """Encoded images in uncompressed Arrow files (IPC streams or files), read where they are."""

    def __init__(
        self,
        files: Paths,
        *,
        image: str = "image",
        target: str | None = "label",
        transform: Transform | None = None,
        target_transform: Transform | None = None,
    ) -> None:
        """Finds the ranges of the images.

        Args:
            files: a path, a folder, a pattern or a list of these.
            image: name of the column of images: binary, structs of bytes and path, or paths.
            target: name of the column of targets; ``None`` for the target -1.
            transform: transform of an image.
            target_transform: transform of a target; needed if targets are not integers.

        Raises:
            ValueError: a file is no Arrow file, is compressed, or does not have the columns.
            FileNotFoundError: a file does not exist.
        """
        paths = shard_paths(files, ".arrow")
        table = _joined(paths)
        where = os.path.basename(paths[0]) if len(paths) == 1 else f"{len(paths)} Arrow files"
        super().__init__(
            find_ranges(find_column(table, image, where), image, where),
            _targets(table, target, where, target_transform),
            transform=transform,
            target_transform=target_transform,
        )

    def describe(self) -> str:
        files = counted(len(self.byte_ranges().files), "Arrow file")
        return f"{counted(len(self), 'value')} of {files}"


class HuggingFaceImages(EncodedImages):
    """Images of a Hugging Face dataset, made by ``from_hugging_face``."""

    def describe(self) -> str:
        files = counted(len(self.byte_ranges().files), "file")
        return f"{counted(len(self), 'row')} of a Hugging Face dataset in {files}"


def from_hugging_face(
    dataset: Any,
    transform: Transform | None = None,
    *,
    image: str = "image",
    target: str | None = "label",
    target_transform: Transform | None = None,
) -> EncodedImages:
    """Returns the images of a ``datasets.Dataset``, in its order, read from its Arrow files.

    Selections, shuffles and filters of the dataset are kept. Images are converted to RGB. The
    orientation in EXIF data is not applied, as in torchvision's ``ImageFolder``.

    Args:
        dataset: a dataset with images on disk, from ``load_dataset`` or ``load_from_disk``.
        transform: transform of an image.
        image: name of the column of images.
        target: name of the column of targets; ``None`` for the target -1.
        target_transform: transform of a target; needed if targets are not integers.

    Raises:
        TypeError: ``dataset`` is not a ``datasets.Dataset``.
        ValueError: the dataset lacks a column, has its own transform, or has images in memory.
    """
    _check_is_dataset(dataset)
    table, where = dataset.data.table, f"the dataset of {len(dataset)} rows"
    rows = None if dataset._indices is None else dataset._indices.column(0).to_numpy()
    ranges = find_ranges(find_column(table, image, where), image, where, rows)
    targets = _targets(table, target, where, target_transform, rows)
    return HuggingFaceImages(
        ranges, targets, transform=transform, target_transform=target_transform
    )


def _targets(
    table: pa.Table,
    name: str | None,
    where: str,
    target_transform: Transform | None,
    wanted: Rows | None = None,
) -> ShardTargets:
    if name is None:
        return no_targets(table.num_rows if wanted is None else len(wanted))
    column = find_column(table, name, where)
    if wanted is not None:
        column = column.take(pa.array(wanted))
    return read_targets(column, name, where, has_transform=target_transform is not None)


def _joined(paths: Sequence[str]) -> pa.Table:
    tables = [read_table(pa.memory_map(path), path) for path in paths]
    for table, path in zip(tables, paths, strict=True):
        if not table.schema.equals(tables[0].schema):
            raise ValueError(
                f"{path!r} has the columns {', '.join(table.column_names)}, and {paths[0]!r} has "
                f"{', '.join(tables[0].column_names)}: choose files of one kind by a pattern "
                '(datasets keeps what it computes as "cache-*.arrow" beside its "data-*.arrow")'
            )
    return pa.concat_tables(tables)


def _check_is_dataset(dataset: Any) -> None:
    kind = type(dataset)
    if kind.__name__ in ("DatasetDict", "IterableDatasetDict"):
        splits = list(map(repr, dataset))
        raise TypeError(
            f"a {kind.__name__} has splits ({', '.join(splits)}): give one of them, such as "
            f"dataset[{splits[0] if splits else '...'}]"
        )
    if kind.__name__ == "IterableDataset":
        raise TypeError(
            "an IterableDataset has no index of its images: load it without streaming=True, or "
            "give it to FusionLoader as it is"
        )
    if not hasattr(dataset, "_indices") or not hasattr(dataset, "data"):
        raise TypeError(f"from_hugging_face takes a datasets.Dataset, not {kind.__name__}")
    if dataset.format["type"] == "custom":
        raise ValueError(
            "the dataset has a transform of its own (with_transform), which gets batches of "
            "rows: give dataset.with_format(None), and a transform of images here"
        )
