"""Streams for tests: a table of their samples, and a process that reads them."""

from __future__ import annotations

import contextlib

from fusionloader.cache.range_reading import FileRange
from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.data.read_ahead.read_ahead_process import ReadAheadProcess
from fusionloader.data.sources.encoded_images import EncodedImages
from fusionloader.data.sources.streams.settings import ReadSettings
from support.waiting import PATIENCE

QUICK = {"retries": 1, "timeout": PATIENCE, "hedge": False}


def table_of(images: EncodedImages) -> DatasetTable:
    ranges = images.byte_ranges()
    table = DatasetTable.of_ranges(ranges.files, ranges.stamps, len(ranges), ranges.are_remote)
    table.ranges[:], table.sizes[:], table.targets[:] = ranges.packed, ranges.nbytes, images.targets
    return table


@contextlib.contextmanager
def reading(images: EncodedImages, **settings):
    """The process that reads the samples, and what a worker asks it through."""
    reader = ReadAheadProcess(table_of(images), ReadSettings(**{**QUICK, **settings}))
    fetcher = reader.files.open(-1, range_of(images))
    try:
        yield reader, fetcher
    finally:
        fetcher.close()
        reader.close()


def range_of(images: EncodedImages):
    return lambda item: FileRange(*images.byte_ranges().at(item))


def brought(fetcher, items) -> dict[int, bytes]:
    """The bytes that a worker gets."""
    return {each.item: bytes(each.data) for each in fetcher.bring(items)}
