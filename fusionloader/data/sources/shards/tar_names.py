"""Names of samples in tar archives.

Native workers import this when there is something to say: torch is not imported here.
"""

from __future__ import annotations

import os

from fusionloader.data.sources.shards.tar_local_index import name_in


class MemberNames:
    """Names samples by their members: ``train-003.tar: cats/5.jpg``."""

    def __init__(self, indexes: dict[str, str | None]) -> None:
        """Takes the paths of the archives' indexes."""
        self._indexes = indexes

    def name(self, file: str, offset: int, item: int) -> str:
        """See ``SampleNames``. Names are looked up, not kept."""
        path = self._indexes.get(file)
        found = None if path is None else name_in(path, offset)
        return f"{os.path.basename(file)}: {found or f'byte {offset}'}"
