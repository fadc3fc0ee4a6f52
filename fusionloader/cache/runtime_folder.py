"""The user's runtime folder, which contains the holder's socket."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

_MODE = 0o700


class RuntimeFolderError(OSError):
    """The folder cannot be made, or other users could write to it."""


def runtime_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Returns the path of the folder, which need not exist.

    It is ``$XDG_RUNTIME_DIR/fusionloader`` if the variable names a folder of this user. Under Slurm
    it may name one of another machine, under ``su`` one of another user. Otherwise the path is
    ``fusionloader-UID`` in the temporary folder.
    """
    given = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(given) and _is_own_folder(given):
        return Path(given) / "fusionloader"
    return Path(tempfile.gettempdir()) / f"fusionloader-{os.geteuid()}"


def open_runtime_folder(path: Path) -> int:
    """Makes the folder if it is missing; returns a descriptor of it, which the caller closes.

    The checks use the open descriptor, so a change of the path in between has no effect.

    Raises:
        RuntimeFolderError: it cannot be made or opened, belongs to another user, or other users
            may enter it.
    """
    try:
        path.mkdir(_MODE, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        found = "a symbolic link" if path.is_symlink() else error.strerror
        raise RuntimeFolderError(
            f"the cache's runtime folder {path} is no folder that can be used: {found}; remove it, "
            "or let XDG_RUNTIME_DIR name a folder of yours"
        ) from error
    if fault := _fault(os.fstat(fd)):
        os.close(fd)
        raise RuntimeFolderError(f"the cache's runtime folder {path} {fault}")
    return fd


def _fault(found: os.stat_result) -> str:
    if found.st_uid != os.geteuid():
        return (
            f"belongs to user {found.st_uid}, not to {os.geteuid()}: let its owner remove it, or "
            "let XDG_RUNTIME_DIR name a folder of yours"
        )
    if mode := stat.S_IMODE(found.st_mode) & 0o077:
        return f"is open to others (mode {_MODE | mode:04o}): chmod 700 it if it is yours"
    return ""


def _is_own_folder(path: str) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
