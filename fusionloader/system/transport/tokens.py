"""The user's token file: its place, and how it is made."""

from __future__ import annotations

import os
from pathlib import Path

from fusionloader.system.transport.identity import draw_token


def default_token_file() -> Path:
    """Returns ``$XDG_CONFIG_HOME/fusionloader/token`` or ``~/.config/fusionloader/token``.

    The file need not exist.
    """
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "fusionloader" / "token"


def make_token_file(path: Path) -> bool:
    """Writes a new token in hexadecimal digits to a file that only the user can read.

    Returns ``False`` if there is a file already, which stays unchanged.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(fd, "w") as file:
        file.write(f"{draw_token().hex()}\n")
    return True
