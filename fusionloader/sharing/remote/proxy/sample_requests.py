"""Requests for the samples of tiny-batches that a lane has claimed."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

from fusionloader import _native
from fusionloader.cache.range_reading import FileRange, read_range
from fusionloader.sharing.remote.protocol import (
    MOST_BODY,
    MOST_SAMPLES,
    SAMPLE_BYTES,
    DataMode,
    WantedSample,
    WorkRequest,
    encode_range,
    encode_request,
)
from fusionloader.sharing.remote.user_code.layouts import LayoutRows

_INDEX_BYTES = 8


class EncodedRequest(NamedTuple):
    """The head of a request, its body in parts, and its number of samples."""

    head: bytes
    body: Sequence[bytes | memoryview]
    samples: int

    @property
    def nbytes(self) -> int:
        """Number of bytes that are sent."""
        return len(self.head) + sum(map(len, self.body))


def request_for(
    claim: _native.Claim, rows: _native.RemoteRows, mode: DataMode, number: int, most: int
) -> EncodedRequest | None:
    """Returns the request for a claim of at most ``most`` samples.

    Returns ``None`` if a sample cannot be sent: its index or its file does not exist, or it is too
    large.
    """
    start = claim.first * claim.tiny_size
    stop = min(start + claim.count * claim.tiny_size, claim.samples)
    if stop - start > most:
        return None
    if mode is DataMode.PATHS:
        encoded, joined = rows.paths(claim)
        if encoded:
            head = encode_request(number, claim.seed, claim.epoch, mode, encoded)
            return EncodedRequest(head, [joined], len(encoded) // SAMPLE_BYTES)
    items, keys, occurrences, groups = claim.sample_keys(start, stop)
    if min(items) < 0 or max(items) >= rows.items:
        return None
    try:
        body = [_data(rows, mode, item) for item in items]
    except OSError:
        return None
    if sum(map(len, body)) > MOST_BODY:
        return None
    paths = mode is DataMode.PATHS
    if paths and rows.holds_ranges:
        mode = DataMode.RANGES
    wanted = [
        WantedSample(key, group, rows.size(item) if paths else 0, occurrence, len(data))
        for item, key, occurrence, group, data in zip(
            items, keys, occurrences, groups, body, strict=True
        )
    ]
    head = WorkRequest(number, claim.seed, claim.epoch, mode, wanted).encode()
    return EncodedRequest(head, body, len(wanted))


def request_for_code(
    queue: _native.WorkerQueue, claim: _native.Claim, rows: LayoutRows, number: int
) -> EncodedRequest | None:
    """Returns the request for a claim of user code's samples.

    Returns ``None`` if an index is no plain integer, or the batch has no rows yet.
    """
    settled = rows.settled(queue)
    if settled is None or claim.payload is None or len(claim.indices()):
        return None
    start = claim.first * claim.tiny_size
    stop = min(start + claim.count * claim.tiny_size, claim.samples)
    if (stop - start) * rows.row_bytes > MOST_BODY or stop - start > MOST_SAMPLES:
        return None
    items, keys, occurrences, groups = claim.sample_keys(start, stop)
    wanted = [
        WantedSample(key, group, 0, occurrence, _INDEX_BYTES)
        for key, occurrence, group in zip(keys, occurrences, groups, strict=True)
    ]
    head = WorkRequest(number, claim.seed, claim.epoch, DataMode.INDICES, wanted).encode()
    return EncodedRequest(
        head, [settled.digest, struct.pack(f"<{len(items)}q", *items)], len(items)
    )


def _data(rows: _native.RemoteRows, mode: DataMode, item: int) -> bytes | memoryview:
    if mode is DataMode.PIXELS:
        return rows.pixels(item)
    found = rows.range(item)
    if mode is not DataMode.PATHS:
        return read_range(FileRange.of(found))
    path = found[0] if found[0].startswith(b"/") else os.path.abspath(found[0])
    return encode_range(found[1], found[3], path) if rows.holds_ranges else path
