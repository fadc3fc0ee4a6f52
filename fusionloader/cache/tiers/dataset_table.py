"""A dataset's table in shared memory: files, ranges or pixels, and targets."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from fusionloader import _native
from fusionloader.system.shm import objects
from fusionloader.system.shm.descriptor import OwnedDescriptor

Targets = npt.NDArray[np.int64]

_HEADER = 13  # uint64 words of csrc/worker/dataset_table.hpp
_MAGIC = int.from_bytes(b"FLtable2", "little")  # another layout has another number
_CHUNK_PATHS = 1 << 14  # paths joined at a time, which then fit into a core's cache
OFFSET_BITS = 40
"""Bits of the offset in a packed range; the bits above are the number of the file."""


class DatasetTable(OwnedDescriptor):
    """The table of ``csrc/worker/dataset_table.hpp``.

    Attributes:
        fd: file descriptor of the object, for workers to map.
        nbytes: size of the object in bytes.
        offsets: uint64 array of N + 1: where each path begins in ``blob``, and the end of the last;
            empty for pixels.
        ranges: uint64 array of N: number of the file and 40 bits of offset; ``None`` if samples
            are whole files or pixels.
        stamps: int64 array of shape (files, 2): bytes and mtime in ns of each file with ranges.
        is_remote: whether the files are URLs.
        sizes: uint32 array of N: bytes of each sample, 0 until a worker has read its file.
        targets: int64 array of N.
        blob: uint8 array: the paths, or the images one after the other.
        image_shape: height, width and channels of the images; ``None`` for paths.
    """

    def __init__(
        self,
        count: int,
        path_offsets: npt.NDArray[np.uint64],
        blob_bytes: int,
        shape: tuple[int, int, int] = (0, 0, 0),
        stamps: npt.NDArray[np.int64] | None = None,
        is_remote: bool = False,
    ) -> None:
        """Allocates the memory. With ``stamps``, samples are ranges of files."""
        at_stamps = 8 * (_HEADER + len(path_offsets))
        at_ranges = at_stamps + (0 if stamps is None else stamps.nbytes)
        at_targets = at_ranges + (0 if stamps is None else 8 * count)
        at_sizes = at_targets + 8 * count
        at_blob = at_sizes + 4 * count
        nbytes = at_blob + blob_bytes
        objects.check_room(nbytes, "the dataset's table")
        fd = objects.create(nbytes, "table")
        objects.allocate(fd, 0, nbytes)
        mapping = memoryview(_native.SharedMapping(fd, 0, nbytes))
        words = np.frombuffer(mapping, np.uint64, _HEADER + len(path_offsets))
        words[:7] = (_MAGIC, nbytes, count, 8 * _HEADER, at_targets, at_sizes, at_blob)
        ranges = (at_ranges, at_stamps, is_remote) if stamps is not None else (0, 0, 0)
        words[7:_HEADER] = (*shape, *ranges)
        words[_HEADER:] = path_offsets
        self._map(fd, nbytes)
        if stamps is not None:
            self.stamps[:] = stamps

    def _map(self, fd: int, nbytes: int) -> None:
        self.fd: int = fd
        self.nbytes: int = nbytes
        self._digest: str | None = None
        mapping = memoryview(_native.SharedMapping(fd, 0, nbytes))
        magic, whole, *_ = header = np.frombuffer(mapping, np.uint64, _HEADER).tolist()
        if magic != _MAGIC or whole > nbytes:
            raise _native.SharedMemoryMismatch(
                "found no table of a dataset: another version of fusionloader made it; end all "
                "processes that share it, and start them with one version"
            )
        header = header[2:]
        count, at_offsets, at_targets, at_sizes, at_blob = header[:5]
        height, width, channels, at_ranges, at_stamps = header[5:10]
        self.image_shape: tuple[int, int, int] | None = (
            (height, width, channels) if channels else None
        )
        self.is_remote: bool = bool(header[10])
        files = ((at_stamps or at_targets) - at_offsets) // 8
        self.offsets: npt.NDArray[np.uint64] = np.frombuffer(mapping, np.uint64, files, at_offsets)
        stamps = np.frombuffer(mapping, np.int64, 2 * (files - 1) if at_stamps else 0, at_stamps)
        self.stamps: npt.NDArray[np.int64] = stamps.reshape(-1, 2)
        self.ranges: npt.NDArray[np.uint64] | None = None
        if at_ranges:
            self.ranges = np.frombuffer(mapping, np.uint64, count, at_ranges)
        self.targets: npt.NDArray[np.int64] = np.frombuffer(mapping, np.int64, count, at_targets)
        self.sizes: npt.NDArray[np.uint32] = np.frombuffer(mapping, np.uint32, count, at_sizes)
        self.blob: npt.NDArray[np.uint8] = np.frombuffer(
            mapping, np.uint8, nbytes - at_blob, at_blob
        )

    @classmethod
    def of_descriptor(cls, fd: int, nbytes: int) -> DatasetTable:
        """Opens the table that another process made; ``fd`` is duplicated."""
        table = cls.__new__(cls)
        table._map(os.dup(fd), nbytes)
        return table

    def path(self, item: int) -> bytes:
        file = item if self.ranges is None else int(self.ranges[item]) >> OFFSET_BITS
        begin, end = int(self.offsets[file]), int(self.offsets[file + 1])
        return self.blob[begin : end - 1].tobytes()

    def range(self, item: int) -> tuple[bytes, int, int, int, int]:
        """Returns path, offset and size of a sample, and size and mtime (ns) of its file.

        All numbers are 0 if the sample is a whole file.
        """
        if self.ranges is None:
            return self.path(item), 0, 0, 0, 0
        packed = int(self.ranges[item])
        size, mtime_ns = self.stamps[packed >> OFFSET_BITS].tolist()
        offset = packed & ((1 << OFFSET_BITS) - 1)
        return self.path(item), offset, int(self.sizes[item]), size, mtime_ns

    @classmethod
    def of_files(cls, paths: Sequence[str], targets: Sequence[int]) -> DatasetTable:
        parts, offsets = _joined(paths)
        table = cls(len(paths), offsets, sum(map(len, parts)))
        table.targets[:] = targets
        table._fill_blob(parts)
        return table

    @classmethod
    def of_ranges(
        cls, files: Sequence[str], stamps: npt.NDArray[np.int64], count: int, is_remote: bool
    ) -> DatasetTable:
        """Makes a table of ranges, whose ``ranges``, ``sizes`` and ``targets`` the caller fills.

        So the caller can free its own arrays one by one.
        """
        parts, offsets = _joined(files)
        blob_bytes = sum(map(len, parts))
        table = cls(count, offsets, blob_bytes, stamps=stamps, is_remote=is_remote)
        table._fill_blob(parts)
        return table

    @classmethod
    def of_pixels(cls, images: npt.NDArray[np.uint8], targets: Targets) -> DatasetTable:
        """Makes the table of ``images``, uint8 of shape (N, height, width, channels)."""
        _, height, width, channels = images.shape
        no_paths = np.empty(0, np.uint64)
        table = cls(len(targets), no_paths, images.nbytes, (height, width, channels))
        table.targets[:] = targets
        table.blob.reshape(images.shape)[:] = images
        return table

    def _fill_blob(self, parts: Iterable[bytes]) -> None:
        begin = 0
        for part in parts:
            self.blob[begin : begin + len(part)] = np.frombuffer(part, np.uint8)
            begin += len(part)

    def has_pixels(self, images: npt.NDArray[np.uint8], targets: Targets) -> bool:
        return (
            self.blob.nbytes == images.nbytes
            and len(self) == len(targets)
            and np.array_equal(self.targets, targets)
            and np.array_equal(self.blob.reshape(images.shape), images)
        )

    def digest(self) -> str:
        """Returns a digest of the paths, ranges or pixels, and of the targets."""
        if self._digest is None:
            found = hashlib.blake2b(digest_size=16)
            parts = [self.targets.data, self.offsets.data, self.blob.data]
            if self.ranges is not None:
                parts += [self.stamps.data, self.ranges.data, self.sizes.data]
            for part in parts:
                found.update(part)
            self._digest = found.hexdigest()
        return self._digest

    def __len__(self) -> int:
        return len(self.targets)


def _joined(paths: Sequence[str]) -> tuple[list[bytes], npt.NDArray[np.uint64]]:
    """Returns the paths with a zero byte after each, in parts, and their offsets, N + 1."""
    # In chunks: one by one, a million paths take seconds; all at once, they take much memory.
    parts, offsets = [], np.zeros(len(paths) + 1, dtype=np.uint64)
    for first in range(0, len(paths), _CHUNK_PATHS):
        some = paths[first : first + _CHUNK_PATHS]
        parts.append(os.fsencode("\0".join([*some, ""])))
        ends = np.flatnonzero(np.frombuffer(parts[-1], np.uint8) == 0)
        if len(ends) != len(some):
            raise ValueError("a path of the dataset has a null character in it")
        offsets[first + 1 : first + 1 + len(some)] = offsets[first] + (ends + 1).astype(np.uint64)
    return parts, offsets
