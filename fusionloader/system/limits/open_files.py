"""The limit of open files, for the package's own processes."""

from __future__ import annotations

import contextlib
import resource


def allow_many_files() -> None:
    """Raises the soft limit to the hard one; in a user's process ``select()`` may then fail."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
