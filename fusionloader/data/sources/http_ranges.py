"""Reads ranges of files on HTTP servers, and no more bytes than requested.

fsspec reads the whole answer of a server before it checks it. A server that ignores ranges would
fill the memory with whole files, and one with an endless answer would fill all of it.

Native workers import this module, so it imports neither numpy nor torch.
"""

from __future__ import annotations

import re
from typing import Any

_CONTENT_RANGE = re.compile(r"bytes (\d+)-")


class WrongLength(OSError):
    """An answer does not have the requested length."""


class RangesIgnored(OSError):
    """A server answers with another range than the requested one."""


def is_http(system: Any) -> bool:
    from fsspec.implementations.http import HTTPFileSystem

    return isinstance(system, HTTPFileSystem)


async def read_range(system: Any, url: str, start: int, stop: int) -> bytes:
    """Returns the bytes of a file from ``start`` to ``stop``, read with fsspec's session.

    Raises:
        RangesIgnored: the answer is another range.
        WrongLength: the answer is longer or shorter.
        OSError, aiohttp.ClientError: the server refuses, fails, or does not answer.
    """
    if start == stop:
        return b""
    data = await _answer(system, url, {"Range": f"bytes={start}-{stop - 1}"}, stop - start, start)
    if len(data) != stop - start:
        found = "more" if len(data) > stop - start else f"{len(data)} bytes"
        raise WrongLength(f"{found} instead of {stop - start}")
    return data


async def read_whole(system: Any, url: str, most: int) -> bytes:
    """Returns a whole file.

    Raises:
        WrongLength: the file has more than ``most`` bytes.
        OSError, aiohttp.ClientError: the server refuses, fails, or does not answer.
    """
    data = await _answer(system, url, {}, most, 0)
    if len(data) > most:
        raise WrongLength(f"more than {most} bytes")
    return data


async def _answer(system: Any, url: str, headers: dict[str, str], most: int, start: int) -> bytes:
    """Returns the answer of a server, cut after ``most`` + 1 bytes."""
    session = await system.set_session()
    options = dict(system.kwargs)
    options["headers"] = {"Accept-Encoding": "identity", **options.get("headers", {}), **headers}
    async with session.get(system.encode_url(url), **options) as answer:
        system._raise_not_found_for_status(answer, url)
        begin = _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
        if headers and begin is not None and int(begin[1]) != start:
            raise RangesIgnored(f"the answer begins at byte {begin[1]}, and not at {start}")
        is_whole = bool(headers) and answer.status == 200
        parts, done = [], 0
        while done <= most and (part := await answer.content.read(most + 1 - done)):
            parts.append(part)
            done += len(part)
            if is_whole and (start or done > most):
                raise RangesIgnored("the answer is the whole file, and not a range of it")
    return b"".join(parts)
