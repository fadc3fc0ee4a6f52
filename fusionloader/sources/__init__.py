"""Where samples come from: datasets, their tables in shared memory, and what is kept of files.

Public are the datasets of byte ranges and what they are made of.
"""

from __future__ import annotations

import importlib

_PUBLIC = {
    "ByteRanges": "byte_ranges",
    "EncodedImages": "encoded_images",
    "OffsetNames": "sample_names",
    "SampleNames": "sample_names",
    "ShardChanged": "range_reading",
    "StreamSampler": "streams.sampler",
    "TarStream": "streams.tar_stream",
    "UrlUnreadable": "url_reading",
}


def __getattr__(name: str) -> object:
    # Native workers import modules of this room, without torch and numpy.
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
