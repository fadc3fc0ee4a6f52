"""A dataset in shared memory, once for all workers: its files' paths or its pixels, and targets."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fusionloader import _native
from fusionloader.shm import objects
from fusionloader.shm.owned_descriptor import OwnedDescriptor

Targets = npt.NDArray[np.int64]

_HEADER = 8  # uint64 words of csrc/worker/dataset_table.hpp
_CHUNK_PATHS = 1 << 14  # paths joined at a time, which then fit into a core's cache


class DatasetTable(OwnedDescriptor):
    """The table of ``csrc/worker/dataset_table.hpp``.

    Attributes:
        fd: file descriptor of the object, for workers to map.
        nbytes: its size.
        offsets: uint64 array, where each path begins in ``blob``, and the end; empty for pixels.
        sizes: uint32 array, bytes of each file, 0 where no worker has read it yet.
        targets: int64 array.
        blob: uint8 array: the paths, or the images one after the other.
        image_shape: height, width and channels of these; ``None`` where there are paths.
    """

    def __init__(
        self,
        targets: Sequence[int] | Targets,
        path_offsets: npt.NDArray[np.uint64],
        blob_bytes: int,
        shape: tuple[int, int, int],
    ) -> None:
        count = len(targets)
        at_targets = 8 * (_HEADER + len(path_offsets))
        at_sizes = at_targets + 8 * count
        at_blob = at_sizes + 4 * count
        nbytes = at_blob + blob_bytes
        objects.check_room(nbytes, "the dataset's table")
        fd = objects.create(nbytes)
        objects.reserve(fd, 0, nbytes)
        mapping = memoryview(_native.SharedMapping(fd, 0, nbytes))
        words = np.frombuffer(mapping, np.uint64, _HEADER + len(path_offsets))
        words[:_HEADER] = (count, 8 * _HEADER, at_targets, at_sizes, at_blob, *shape)
        words[_HEADER:] = path_offsets
        self._map(fd, nbytes)
        self.targets[:] = targets

    def _map(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self._digest: str | None = None
        mapping = memoryview(_native.SharedMapping(fd, 0, nbytes))
        header = np.frombuffer(mapping, np.uint64, _HEADER)
        count, at_offsets, at_targets, at_sizes, at_blob = (int(word) for word in header[:5])
        height, width, channels = (int(word) for word in header[5:])
        self.image_shape = (height, width, channels) if channels else None
        self.offsets = np.frombuffer(mapping, np.uint64, (at_targets - at_offsets) // 8, at_offsets)
        self.targets = np.frombuffer(mapping, np.int64, count, at_targets)
        self.sizes = np.frombuffer(mapping, np.uint32, count, at_sizes)
        self.blob = np.frombuffer(mapping, np.uint8, nbytes - at_blob, at_blob)

    @classmethod
    def of_descriptor(cls, fd: int, nbytes: int) -> DatasetTable:
        """Returns the table that another process made, which owns it."""
        table = cls.__new__(cls)
        table._map(os.dup(fd), nbytes)
        return table

    def path(self, item: int) -> bytes:
        """Returns the path of a file."""
        begin, end = int(self.offsets[item]), int(self.offsets[item + 1])
        return self.blob[begin : end - 1].tobytes()

    @classmethod
    def of_files(cls, paths: Sequence[str], targets: Sequence[int]) -> DatasetTable:
        """Returns the table of an image folder."""
        # One by one a million paths take seconds; all at once they take much memory.
        parts, offsets = [], np.zeros(len(paths) + 1, dtype=np.uint64)
        for first in range(0, len(paths), _CHUNK_PATHS):
            some = paths[first : first + _CHUNK_PATHS]
            parts.append(os.fsencode("\0".join([*some, ""])))
            ends = np.flatnonzero(np.frombuffer(parts[-1], np.uint8) == 0)
            if len(ends) != len(some):
                raise ValueError("a path of the dataset has a null character in it")
            offsets[first + 1 : first + 1 + len(some)] = offsets[first] + (ends + 1).astype(
                np.uint64
            )
        table = cls(targets, offsets, sum(map(len, parts)), (0, 0, 0))
        begin = 0
        for part in parts:
            table.blob[begin : begin + len(part)] = np.frombuffer(part, np.uint8)
            begin += len(part)
        return table

    @classmethod
    def of_pixels(cls, images: npt.NDArray[np.uint8], targets: Targets) -> DatasetTable:
        """Returns the table of ``images``, uint8 of shape (N, height, width, channels)."""
        _, height, width, channels = images.shape
        no_paths = np.empty(0, np.uint64)
        table = cls(targets, no_paths, images.nbytes, (height, width, channels))
        table.blob.reshape(images.shape)[:] = images
        return table

    def has_pixels(self, images: npt.NDArray[np.uint8], targets: Targets) -> bool:
        """Whether the table is that of these images and targets."""
        return (
            self.blob.nbytes == images.nbytes
            and len(self) == len(targets)
            and np.array_equal(self.targets, targets)
            and np.array_equal(self.blob.reshape(images.shape), images)
        )

    def digest(self) -> str:
        """Returns a digest of the paths or pixels and of the targets."""
        if self._digest is None:
            found = hashlib.blake2b(digest_size=16)
            for part in (self.targets, self.offsets, self.blob):
                found.update(part.data)
            self._digest = found.hexdigest()
        return self._digest

    def __len__(self) -> int:
        return len(self.targets)
