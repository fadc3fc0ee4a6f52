"""The blocks of code in pages: ``docs/**/*.md``, those at the root, and README.md of folders.

A block of Python is run, unless a comment on the line before it says why not::

    <!-- not run: it needs a CUDA device -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")]
)
_FENCE = re.compile(r"^(`{3,})(\w*)$")
_BLOCK = re.compile(r"^(`{3,})\w*\n.*?^\1$", re.MULTILINE | re.DOTALL)
_REASON = re.compile(r"^<!-- not run: (.*) -->$")
# Of lists, footnotes and what is included in the reference, whose text is indented as well.
_ITEM = re.compile(r"\s*([-*]|\d+\.|\[\^\w+\]:|:::)\s")


@dataclass(frozen=True, slots=True)
class Block:
    """Code of a page; ``line`` is that of its fence, ``reason`` why it is not run."""

    page: str
    line: int
    language: str
    code: str
    reason: str | None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str) -> list[Block]:
    """Returns a page's blocks in order.

    Raises:
        ValueError: a fence is not closed.
    """
    lines = (ROOT / page).read_text().splitlines()
    found, number = [], 0
    while number < len(lines):
        opened = _FENCE.match(lines[number])
        if opened is None:
            number += 1
            continue
        end = lines.index(opened[1], number + 1)
        before = _REASON.match(lines[number - 1]) if number else None
        code = "\n".join(lines[number + 1 : end]) + "\n"
        found.append(Block(page, number + 1, opened[2], code, before and before[1]))
        number = end + 1
    return found


def prose(page: str) -> str:
    """Returns a page without its blocks."""
    return _BLOCK.sub("", (ROOT / page).read_text())


def python_blocks(page: str) -> list[Block]:
    """Returns those in Python."""
    return [block for block in blocks_of(page) if block.language == "python"]


def indented_code(page: str) -> list[int]:
    """Returns the lines at which a page has code without a fence, which says no language."""
    found, fence, above = [], None, ""
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        if fence is not None:
            fence = None if line == fence else fence
        elif opened := _FENCE.match(line):
            fence = opened[1]
        elif line.startswith("    "):
            if not _ITEM.match(above):
                found.append(number)
        elif line.strip():
            above = line if not line.startswith("  ") else above
    return found
