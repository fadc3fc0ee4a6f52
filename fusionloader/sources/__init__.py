"""Where samples come from: datasets, their tables in shared memory, and what is kept of files.

Public are the datasets of byte ranges and what they are made of.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusionloader.sources.byte_ranges import ByteRanges as ByteRanges
    from fusionloader.sources.encoded_images import EncodedImages as EncodedImages
    from fusionloader.sources.range_reading import ShardChanged as ShardChanged
    from fusionloader.sources.sample_names import OffsetNames as OffsetNames
    from fusionloader.sources.sample_names import SampleNames as SampleNames
    from fusionloader.sources.shards.columns.arrow_images import ArrowImages as ArrowImages
    from fusionloader.sources.shards.columns.arrow_images import (
        from_hugging_face as from_hugging_face,
    )
    from fusionloader.sources.shards.columns.parquet_images import ParquetImages as ParquetImages
    from fusionloader.sources.shards.packed.litdata_images import LitDataImages as LitDataImages
    from fusionloader.sources.shards.packed.lmdb_images import LMDBImages as LMDBImages
    from fusionloader.sources.shards.packed.mds_images import MDSImages as MDSImages
    from fusionloader.sources.shards.tar_errors import ShardError as ShardError
    from fusionloader.sources.shards.tar_folder import TarFolder as TarFolder
    from fusionloader.sources.streams.sampler import StreamSampler as StreamSampler
    from fusionloader.sources.streams.tar_stream import TarStream as TarStream
    from fusionloader.sources.url_reading import UrlUnreadable as UrlUnreadable

__all__ = [
    "ArrowImages",
    "ByteRanges",
    "EncodedImages",
    "LMDBImages",
    "LitDataImages",
    "MDSImages",
    "OffsetNames",
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
    "ParquetImages": "shards.columns.parquet_images",
    "SampleNames": "sample_names",
    "ShardChanged": "range_reading",
    "ShardError": "shards.tar_errors",
    "StreamSampler": "streams.sampler",
    "TarFolder": "shards.tar_folder",
    "TarStream": "streams.tar_stream",
    "UrlUnreadable": "url_reading",
    "from_hugging_face": "shards.columns.arrow_images",
}


def __getattr__(name: str) -> object:
    # Native workers import modules of this room, without torch and numpy.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
