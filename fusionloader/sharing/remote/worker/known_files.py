"""A few files of a dataset, by which a worker finds out whether it has the same data."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable

from fusionloader.sharing.remote.protocol import RemoteFileKey
from fusionloader.sharing.remote.worker.reading import Unavailable, opened

_MOST = 4  # of a dataset, that workers are asked about
_FIRST_BYTES = 1 << 16
_DIGEST_BYTES = 16


def known_file(path: str) -> RemoteFileKey:
    """Returns what is known of a file.

    Args:
        path: absolute, as all machines have it.

    Raises:
        Unavailable: it cannot be opened, or is no regular file.
    """
    with opened(os.fsencode(path)) as (fd, stamp):
        first = b""
        while len(first) < _FIRST_BYTES and (part := os.read(fd, _FIRST_BYTES - len(first))):
            first += part
    digest = hashlib.blake2b(first, digest_size=_DIGEST_BYTES).hexdigest()
    return RemoteFileKey(path, stamp.nbytes, digest)


def difference(known: RemoteFileKey) -> str | None:
    """Returns how the file here differs from the one that is known, ``None`` if it does not."""
    try:
        here = known_file(known.path)
    except Unavailable as error:
        return str(error)
    if here.nbytes != known.nbytes:
        return f"{known.path!r} has {here.nbytes} bytes here, and {known.nbytes} where training is"
    return None if here.digest == known.digest else f"{known.path!r} has other contents here"


def pick_known_files(count: int, path: Callable[[int], bytes]) -> tuple[RemoteFileKey, ...]:
    """Returns what is known of a few files, spread over a dataset.

    Args:
        count: files of the dataset.
        path: returns that of a file by its number. What cannot be read here is left out: that is
            found, and reported, when the sample is made.
    """
    found = []
    for item in sorted({count * part // _MOST for part in range(_MOST)} if count else ()):
        with contextlib.suppress(Unavailable):
            found.append(known_file(os.path.abspath(os.fsdecode(path(item)))))
    return tuple(found)
