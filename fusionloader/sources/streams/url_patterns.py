"""URLs written with braces: ``s3://bucket/train-{000..146}.tar``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_BRACES = re.compile(r"\{([^{}]*)\}")
_MOST = 1_000_000


def expand_urls(urls: str | Iterable[str]) -> list[str]:
    """Returns the URLs that patterns stand for, in their order.

    ``{000..146}`` counts with as many digits as are written, ``{a,b}`` lists.

    Args:
        urls: one pattern, or several.

    Raises:
        ValueError: braces are not closed or nested, a range is empty, a URL is there twice, or
            there is none.
    """
    patterns = [urls] if isinstance(urls, str) else list(urls)
    found = [url for pattern in patterns for url in _expanded(str(pattern))]
    if not found:
        raise ValueError("urls names no shard: give a URL, a pattern with braces, or a list")
    if len(set(found)) < len(found):
        twice = next(url for url in found if found.count(url) > 1)
        raise ValueError(f"urls names a shard twice: {twice}")
    return found


def _expanded(pattern: str) -> list[str]:
    parts: list[list[str]] = []
    at = 0
    for braces in _BRACES.finditer(pattern):
        parts += [[pattern[at : braces.start()]], _choices(braces[1], pattern)]
        at = braces.end()
    parts.append([pattern[at:]])
    if any("{" in text or "}" in text for choice in parts for text in choice):
        raise ValueError(f"{pattern!r} has braces that are not closed, or within others")
    if any(len(choice) > _MOST for choice in parts):
        raise ValueError(f"{pattern!r} stands for more than {_MOST} shards")
    return ["".join(chosen) for chosen in itertools.product(*parts)]


def _choices(text: str, pattern: str) -> list[str]:
    if (counted := _RANGE.fullmatch(text)) is None:
        return text.split(",")
    first, last = int(counted[1]), int(counted[2])
    if last < first:
        raise ValueError(
            f"{pattern!r} counts from {first} down to {last}: write {{{last}..{first}}}"
        )
    width = len(counted[1]) if counted[1].startswith("0") else 0
    return [str(number).zfill(width) for number in range(first, last + 1)]
