"""Where samples come from: datasets, their tables in shared memory, and what is kept of files.

Public are the datasets of byte ranges and what they are made of.
"""

from __future__ import annotations

import importlib

_PUBLIC = {
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
    "StreamSampler": "streams.sampler",
    "TarFolder": "shards.tar_folder",
    "TarStream": "streams.tar_stream",
    "UrlUnreadable": "url_reading",
    "from_hugging_face": "shards.columns.arrow_images",
}


def __getattr__(name: str) -> object:
    # Native workers import modules of this room, without torch and numpy.
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
