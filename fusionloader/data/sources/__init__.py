"""Data sources: datasets, their ranges of bytes, and their tables in shared memory.

The public names are the datasets of byte ranges and their parts, and what user code reads with.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusionloader.cache.range_reading import ShardChanged as ShardChanged
    from fusionloader.data.sources.byte_ranges import ByteRanges as ByteRanges
    from fusionloader.data.sources.encoded_images import EncodedImages as EncodedImages
    from fusionloader.data.sources.open_files import OpenFiles as OpenFiles
    from fusionloader.data.sources.sample_names import OffsetNames as OffsetNames
    from fusionloader.data.sources.sample_names import SampleNames as SampleNames
    from fusionloader.data.sources.shards.columns.arrow_images import ArrowImages as ArrowImages
    from fusionloader.data.sources.shards.columns.arrow_images import (
        from_hugging_face as from_hugging_face,
    )
    from fusionloader.data.sources.shards.columns.parquet_images import (
        ParquetImages as ParquetImages,
    )
    from fusionloader.data.sources.shards.packed.litdata_images import (
        LitDataImages as LitDataImages,
    )
    from fusionloader.data.sources.shards.packed.lmdb_images import LMDBImages as LMDBImages
    from fusionloader.data.sources.shards.packed.mds_images import MDSImages as MDSImages
    from fusionloader.data.sources.shards.tar_folder import TarFolder as TarFolder
    from fusionloader.data.sources.shards.tar_members import ShardError as ShardError
    from fusionloader.data.sources.streams.sampler import StreamSampler as StreamSampler
    from fusionloader.data.sources.streams.tar_stream import TarStream as TarStream
    from fusionloader.data.sources.url_errors import UrlUnreadable as UrlUnreadable

__all__ = [
    "ArrowImages",
    "ByteRanges",
    "EncodedImages",
    "LMDBImages",
    "LitDataImages",
    "MDSImages",
    "OffsetNames",
    "OpenFiles",
    "ParquetImages",
    "SampleNames",
    "ShardChanged",
    "ShardError",
    "StreamSampler",
    "TarFolder",
    "TarStream",
    "UrlUnreadable",
    "from_hugging_face",
]
_MODULES = {
    "ArrowImages": "shards.columns.arrow_images",
    "ByteRanges": "byte_ranges",
    "EncodedImages": "encoded_images",
    "LMDBImages": "shards.packed.lmdb_images",
    "LitDataImages": "shards.packed.litdata_images",
    "MDSImages": "shards.packed.mds_images",
    "OffsetNames": "sample_names",
    "OpenFiles": "open_files",
    "ParquetImages": "shards.columns.parquet_images",
    "SampleNames": "sample_names",
    "ShardChanged": "..cache.range_reading",
    "ShardError": "shards.tar_members",
    "StreamSampler": "streams.sampler",
    "TarFolder": "shards.tar_folder",
    "TarStream": "streams.tar_stream",
    "UrlUnreadable": "url_errors",
    "from_hugging_face": "shards.columns.arrow_images",
}


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> object:
        # Lazy, because native workers import modules of this package without torch and numpy.
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
