"""The table of messages in docs/guide/troubleshooting.md."""

from __future__ import annotations

import re
from pathlib import Path

OUT_OF_MEMORY = "…the kernel's out-of-memory killer has ended … of the processes that share …"
NO_MORE_PROCESSES = (
    "no process can be started for a worker: as many processes and threads run as the user or the "
    "container may have. Raise that limit …"
)
_PAGE = Path(__file__).parents[2] / "docs" / "guide/troubleshooting.md"


def documented() -> list[str]:
    """Returns the patterns of all messages; ``…`` stands for anything."""
    return re.findall(r"^\| `(.+?)` \|", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def matches(pattern: str, message: str) -> bool:
    """Whether a message is what a pattern says; line breaks are spaces."""
    parts = (re.escape(part) for part in pattern.split("…"))
    return re.search(".*?".join(parts), " ".join(message.split())) is not None
