"""An image folder's paths, targets and file sizes, once in shared memory for all workers."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from fusionloader import _native
from fusionloader.shm import objects

_HEADER = 5  # uint64 words: count and the four offsets of csrc/worker/dataset_table.hpp


class DatasetTable:
    """The table of ``csrc/worker/dataset_table.hpp``.

    Attributes:
        fd: file descriptor of the object, for workers to map.
        nbytes: its size.
        sizes: uint32 array, bytes of each file, 0 where no worker has read it yet.
    """

    def __init__(self, paths: Sequence[str], targets: Sequence[int]) -> None:
        encoded = [os.fsencode(path) for path in paths]
        blob = b"\0".join(encoded) + b"\0"
        count = len(encoded)
        offsets = np.zeros(count + 1, dtype=np.uint64)
        np.cumsum([len(path) + 1 for path in encoded], out=offsets[1:])
        at_targets = 8 * (_HEADER + count + 1)
        at_sizes = at_targets + 8 * count
        at_blob = at_sizes + 4 * count
        self.nbytes = at_blob + len(blob)
        objects.check_room(self.nbytes, "the paths of the dataset")
        self.fd = objects.create(self.nbytes)
        objects.reserve(self.fd, 0, self.nbytes)
        self._map = memoryview(_native.Mapping(self.fd, 0, self.nbytes))
        words = np.frombuffer(self._map, dtype=np.uint64, count=_HEADER + count + 1)
        words[:_HEADER] = (count, 8 * _HEADER, at_targets, at_sizes, at_blob)
        words[_HEADER:] = offsets
        np.frombuffer(self._map, dtype=np.int64, count=count, offset=at_targets)[:] = targets
        self.sizes = np.frombuffer(self._map, dtype=np.uint32, count=count, offset=at_sizes)
        self._map[at_blob:] = blob

    def __len__(self) -> int:
        return len(self.sizes)

    def close(self) -> None:
        """Closes the descriptor; the memory goes with the last process that maps it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            self.close()
