"""A few files of a dataset, by which a worker finds out whether it has the same data."""

from __future__ import annotations

import hashlib
import os

from fusionloader.remote.protocol import KnownFile
from fusionloader.remote.reading import Unavailable, opened

_FIRST_BYTES = 1 << 16
_DIGEST_BYTES = 16


def known_file(path: str) -> KnownFile:
    """Returns what is known of a file.

    Args:
        path: absolute, as all machines have it.

    Raises:
        Unavailable: it cannot be opened, or is no regular file.
    """
    with opened(os.fsencode(path)) as (fd, nbytes):
        first = b""
        while len(first) < _FIRST_BYTES and (part := os.read(fd, _FIRST_BYTES - len(first))):
            first += part
    return KnownFile(path, nbytes, hashlib.blake2b(first, digest_size=_DIGEST_BYTES).hexdigest())


def difference(known: KnownFile) -> str | None:
    """Returns how the file here differs from the one that is known, ``None`` if it does not."""
    try:
        here = known_file(known.path)
    except Unavailable as error:
        return str(error)
    if here.nbytes != known.nbytes:
        return f"{known.path!r} has {here.nbytes} bytes here, and {known.nbytes} where training is"
    return None if here.digest == known.digest else f"{known.path!r} has other contents here"
