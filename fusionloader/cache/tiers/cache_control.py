"""What workers measure of a dataset, and which tier its samples are kept in.

The workers decide, when they have measured enough: csrc/worker/cache_control.hpp. Here stands what
they have to know for that.
"""

from __future__ import annotations

import numpy as np

from fusionloader.system.shm.shared_page import SharedPage

# As csrc/worker/cache_control.hpp begins.
_FIELDS = ("magic", "samples", "room", "workers", "cores")
_CONTROL = np.dtype([(name, np.uint64) for name in _FIELDS])
_MAGIC = b"FLcontr1"  # another layout has another number


class CacheControl(SharedPage):
    """The page of ``csrc/worker/cache_control.hpp``."""

    def __init__(self, fd: int) -> None:
        """Maps the page behind a descriptor, which it then owns."""
        super().__init__(fd)
        self._words = np.frombuffer(self._page, _CONTROL, 1)

    @classmethod
    def create(cls, samples: int, room: int) -> CacheControl:
        """Returns a page for so many samples and ``room`` bytes for what is kept of them."""
        control = cls(cls._made("cache-control", _MAGIC))
        control._words["samples"], control._words["room"] = samples, room
        control.expect(1, 1)
        return control

    def expect(self, workers: int, cores: int) -> None:
        """Notes how many workers there are, and cores for them, before they measure."""
        self._words["workers"], self._words["cores"] = workers, cores
