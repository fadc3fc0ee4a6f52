"""URLs written with braces: ``s3://bucket/train-{000..146}.tar``."""

from __future__ import annotations

from collections.abc import Iterable

from fusionloader.data.sources.shards.shard_paths import braces_expanded


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
    found = [url for pattern in patterns for url in braces_expanded(str(pattern))]
    if not found:
        raise ValueError("urls names no shard: give a URL, a pattern with braces, or a list")
    if len(set(found)) < len(found):
        twice = next(url for url in found if found.count(url) > 1)
        raise ValueError(f"urls names a shard twice: {twice}")
    return found
