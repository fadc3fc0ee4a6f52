"""The files that a pattern, a folder or a list of them names."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence

from fusionloader.sources.range_reading import is_url

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_BRACES = re.compile(r"\{([^{}]*)\}")
_NUMBERS = re.compile(r"(\d+)\.\.(\d+)")


def shard_paths(paths: Paths, suffix: str) -> tuple[str, ...]:
    """Returns the paths of shards, in the order of the list, sorted within a pattern or folder.

    Args:
        paths: a path, a folder, a glob pattern (``data/*.parquet``), one with braces
            (``train-{000..146}.tar``, ``{train,val}.tar``), or a list of these.
        suffix: of the shards in a folder: ``.tar``.

    Raises:
        FileNotFoundError: there is no such file, or the folder or pattern has none.
        ValueError: a path is a URL.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found = [path for one in given for path in _of_one(os.fspath(one), suffix)]
    if not found:
        raise FileNotFoundError(f"no shards: the list of {suffix} files is empty")
    return tuple(found)


def braces_expanded(pattern: str) -> list[str]:
    """Returns the names of a pattern with braces; numbers keep the width of the first.

    Raises:
        ValueError: numbers in braces go down.
    """
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    numbers = _NUMBERS.fullmatch(found[1])
    if numbers is not None:
        first, last = numbers.groups()
        if int(last) < int(first):
            raise ValueError(f"{found[0]} in {pattern!r} has no numbers: write the smaller first")
        parts = [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    else:
        parts = found[1].split(",")
    before, after = pattern[: found.start()], pattern[found.end() :]
    return [before + part + rest for part in parts for rest in braces_expanded(after)]


def _of_one(path: str, suffix: str) -> list[str]:
    if is_url(path):
        raise ValueError(
            f"{path!r} is a URL, and these shards are local: download them, or see docs/streams.md"
        )
    if os.path.isdir(path):
        found = sorted(glob.glob(os.path.join(glob.escape(path), "*" + suffix)))
        if not found:
            raise FileNotFoundError(f"folder {path!r} has no {suffix} files")
        return found
    found = []
    for name in braces_expanded(path):
        matches = [name] if os.path.exists(name) else sorted(glob.glob(name))
        if not matches:
            raise FileNotFoundError(f"no file {name!r}" + (f" (of {path!r})" * (name != path)))
        found += matches
    return found
