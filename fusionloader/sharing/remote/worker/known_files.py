"""A few files of a dataset, with which a worker checks that it has the same data."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable

from fusionloader.sharing.remote.protocol import RemoteFileKey
from fusionloader.sharing.remote.worker.reading import Unavailable, opened

_MOST = 4  # files that are compared
_FIRST_BYTES = 1 << 16
_DIGEST_BYTES = 16


def known_file(path: str) -> RemoteFileKey:
    """Returns the key of the file with an absolute path.

    Raises:
        Unavailable: it cannot be opened, or is no regular file.
    """
    with opened(os.fsencode(path)) as (fd, stamp):
        first = b""
        while len(first) < _FIRST_BYTES and (part := os.read(fd, _FIRST_BYTES - len(first))):
            first += part
    digest = hashlib.blake2b(first, digest_size=_DIGEST_BYTES).hexdigest()
    return RemoteFileKey(path, stamp.nbytes, digest)


def compare_file(known: RemoteFileKey) -> str | None:
    """Returns how the file here differs from the known one, ``None`` if it does not."""
    try:
        here = known_file(known.path)
    except Unavailable as error:
        return str(error)
    if here.nbytes != known.nbytes:
        return f"{known.path!r} has {here.nbytes} bytes here, and {known.nbytes} where training is"
    return None if here.digest == known.digest else f"{known.path!r} has other contents here"


def pick_known_files(count: int, path: Callable[[int], bytes]) -> tuple[RemoteFileKey, ...]:
    """Returns the keys of a few files, spread over a dataset.

    Files that cannot be read are left out: the error is reported when the sample is made.

    Args:
        count: number of files of the dataset.
        path: returns the path of a file by its number.
    """
    found = []
    for item in sorted({count * part // _MOST for part in range(_MOST)} if count else ()):
        with contextlib.suppress(Unavailable):
            found.append(known_file(os.path.abspath(os.fsdecode(path(item)))))
    return tuple(found)
