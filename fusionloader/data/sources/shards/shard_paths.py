"""Expands patterns, folders and lists to the paths or URLs of shards."""

from __future__ import annotations

import glob
import itertools
import math
import os
import re
from collections.abc import Iterable, Sequence

from fusionloader.cache.range_reading import is_url

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_BRACES = re.compile(r"\{([^{}]*)\}")
_MOST = 1_000_000


def shard_paths(paths: Paths, suffix: str) -> tuple[str, ...]:
    """Returns the paths of shards, in the order of the list, and sorted in a pattern or folder.

    Args:
        paths: a path, a folder, a glob pattern (``data/*.parquet``), one with braces
            (``train-{000..146}.tar``, ``{train,val}.tar``), or a list of these.
        suffix: suffix of the shards in a folder, such as ``.tar``.

    Raises:
        FileNotFoundError: a file does not exist, or a folder or pattern has no files.
        ValueError: a path is a URL.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found = [path for one in given for path in _expand(os.fspath(one), suffix)]
    if not found:
        raise FileNotFoundError(f"no shards: the list of {suffix} files is empty")
    return tuple(found)


def expand_urls(urls: str | Iterable[str]) -> list[str]:
    """Returns the URLs of one or more patterns with braces, in order.

    Raises:
        ValueError: a pattern is invalid, see ``braces_expanded``; a URL occurs twice; or there is
            none.
    """
    patterns = [urls] if isinstance(urls, str) else list(urls)
    found = [url for pattern in patterns for url in braces_expanded(str(pattern))]
    if not found:
        raise ValueError("urls names no shard: give a URL, a pattern with braces, or a list")
    if len(set(found)) < len(found):
        twice = next(url for url in found if found.count(url) > 1)
        raise ValueError(f"urls names a shard twice: {twice}")
    return found


def braces_expanded(pattern: str) -> list[str]:
    """Returns the names of a pattern, in order.

    ``{000..146}`` counts with the same number of digits, and ``{a,b}`` lists.

    Raises:
        ValueError: braces are not closed or nested, a range is empty, or there are too many names.
    """
    parts: list[list[str]] = []
    at = 0
    for braces in _BRACES.finditer(pattern):
        parts += [[pattern[at : braces.start()]], _choices(braces[1], pattern)]
        at = braces.end()
    parts.append([pattern[at:]])
    if any("{" in text or "}" in text for choice in parts for text in choice):
        raise ValueError(f"{pattern!r} has braces that are not closed, or within others")
    _require_few(math.prod(map(len, parts)), pattern)
    return ["".join(chosen) for chosen in itertools.product(*parts)]


def _expand(path: str, suffix: str) -> list[str]:
    if is_url(path):
        raise ValueError(
            f"{path!r} is a URL, and these shards are local: download them, or see "
            "docs/guide/streams.md"
        )
    if os.path.isdir(path):
        found = sorted(glob.glob(os.path.join(glob.escape(path), "*" + suffix)))
        if not found:
            raise FileNotFoundError(f"folder {path!r} has no {suffix} files")
        return found
    if os.path.exists(path):
        return [path]
    found = []
    for name in braces_expanded(path):
        matches = [name] if os.path.exists(name) else sorted(glob.glob(name))
        if not matches:
            raise FileNotFoundError(f"no file {name!r}" + (f" (of {path!r})" * (name != path)))
        found += matches
    return found


def _require_few(names: int, pattern: str) -> None:
    if names > _MOST:
        raise ValueError(f"{pattern!r} stands for more than {_MOST} shards")


def _choices(text: str, pattern: str) -> list[str]:
    if (counted := _RANGE.fullmatch(text)) is None:
        return text.split(",")
    first, last = int(counted[1]), int(counted[2])
    if last < first:
        raise ValueError(
            f"{pattern!r} counts from {first} down to {last}: write {{{last}..{first}}}"
        )
    _require_few(last + 1 - first, pattern)
    width = len(counted[1]) if counted[1].startswith("0") else 0
    return [str(number).zfill(width) for number in range(first, last + 1)]
