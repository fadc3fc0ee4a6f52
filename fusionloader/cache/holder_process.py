"""The process of the holder, which its first user starts."""

from __future__ import annotations

import os
from pathlib import Path

from fusionloader.cache.holder_socket import HolderSocket, log_path


def main(folder: Path) -> None:
    """Serves while memory is held; returns at once if another holder serves.

    Args:
        folder: the user's runtime folder.
    """
    os.chdir("/")
    claimed = HolderSocket.claim(folder)
    if claimed is None:
        return
    # Imported late: ranks start several of these at once, and all but one end before this line.
    from fusionloader.cache.holder import Holder
    from fusionloader.cache.stores import CacheStores

    _leave_standard_error(log_path(folder))
    Holder(claimed, CacheStores(), lives_on=False).serve()


def _leave_standard_error(path: Path) -> None:
    """Redirects stderr to a file, so that readers of the first job's output see its end."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.dup2(fd, 2)
    os.close(fd)
