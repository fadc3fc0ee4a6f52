"""The user's folder for files that can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Returns ``$XDG_CACHE_HOME/fusionloader`` or ``~/.cache/fusionloader``; it need not exist.

    For a user without a home, such as a uid that a container does not know, it is a folder that
    nobody can make.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path("/dev/null" if base.startswith("~") else base) / "fusionloader"
